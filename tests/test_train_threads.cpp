// Sanitizers: asan tsan
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/train/rank_threads.h"
#include "openmok/layer.h"

namespace mok::train {
namespace {

std::string sentence_of(RankThreads& ranks, const std::function<void(const Group&)>& body) {
    try {
        ranks.run(body);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

TEST(RankThreads, MeetingSeparatesPhases) {
    RankThreads ranks(5);
    std::atomic<int> arrived = 0;
    std::atomic<int> wrong = 0;
    ranks.run([&](const Group&) {
        for (int phase = 1; phase <= 200; ++phase) {
            ++arrived;
            ranks.meet();
            if (arrived != 5 * phase) ++wrong;
            ranks.meet();
        }
    });
    EXPECT_EQ(wrong, 0);
}

TEST(RankThreads, AFailureEndsRanksThatMeet) {
    RankThreads ranks(4);
    EXPECT_EQ(sentence_of(ranks,
                          [&](const Group& group) {
                              ranks.meet();
                              if (group.rank() == 2) throw std::runtime_error("rank 2 is ill");
                              ranks.meet();
                          }),
              "rank 2 is ill");
}

TEST(RankThreads, AFailureEndsRanksInTheLayer) {
    RankThreads ranks(3);
    LayerShape shape;
    shape.hidden = shape.intermediate = 8;
    shape.num_experts = 3;
    shape.top_k = 1;
    std::atomic<int> ended = 0;
    const std::vector<int32_t> ids(128, 0);
    const auto body = [&](const Group& group) {
        try {
            Workspace workspace(group, shape, Tuning(), 128);
            ranks.meet();
            if (group.rank() == 1) throw std::runtime_error("rank 1 is ill");
            Schedule(workspace, ConstTensor(ids.data(), DType::I32, {128, 1}));
        } catch (const Error&) {
            ++ended;
            throw;
        }
    };
    EXPECT_EQ(sentence_of(ranks, body), "rank 1 is ill");
    EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace mok::train
