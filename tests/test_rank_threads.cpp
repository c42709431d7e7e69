// Sanitizers: asan tsan
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/common/rank_threads.h"
#include "openmok/layer.h"

namespace mok::cli {
namespace {

std::string sentence_of(const std::vector<Group>& groups,
                        const std::function<void(const Group&)>& body) {
    try {
        run_ranks(groups, body);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

TEST(RankThreads, MeetingSeparatesPhases) {
    std::atomic<int> arrived = 0;
    std::atomic<int> wrong = 0;
    run_ranks(Group::in_process(5), [&](const Group& group) {
        for (int phase = 1; phase <= 200; ++phase) {
            ++arrived;
            meet(group, "barrier after a count");
            if (arrived != 5 * phase) ++wrong;
            meet(group, "barrier before a count");
        }
    });
    EXPECT_EQ(wrong, 0);
}

TEST(RankThreads, AFailureEndsRanksThatMeet) {
    const std::vector<Group> groups = Group::in_process(4);
    EXPECT_EQ(sentence_of(groups,
                          [&](const Group& group) {
                              meet(group, "first barrier");
                              if (group.rank() == 2) throw std::runtime_error("rank 2 is ill");
                              meet(group, "second barrier");
                          }),
              "rank 2 is ill");
}

TEST(RankThreads, AFailureEndsRanksInTheLayer) {
    LayerShape shape;
    shape.hidden = shape.intermediate = 8;
    shape.num_experts = 3;
    shape.top_k = 1;
    std::atomic<int> ended = 0;
    const std::vector<int32_t> ids(128, 0);
    const auto body = [&](const Group& group) {
        try {
            Workspace workspace(group, shape, Tuning(), 128);
            meet(group, "barrier before the ids");
            if (group.rank() == 1) throw std::runtime_error("rank 1 is ill");
            Schedule(workspace, ConstTensor(ids.data(), DType::I32, {128, 1}));
        } catch (const Error&) {
            ++ended;
            throw;
        }
    };
    EXPECT_EQ(sentence_of(Group::in_process(3), body), "rank 1 is ill");
    EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace mok::cli
