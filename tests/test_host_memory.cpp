// Windows of host memory between threads, and what happens when a rank cannot go on.
// Sanitizers: asan tsan
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "comm/agreement.h"
#include "comm/group_state.h"
#include "comm/peer_memory.h"

namespace mok::comm {
namespace {

std::vector<std::string> run_group(int size, const std::function<void(const Group&)>& body) {
    std::vector<std::string> ends(size);
    std::vector<std::jthread> threads;
    for (const Group& group : Group::in_process(size)) {
        threads.emplace_back([&ends, &body, group] {
            try {
                body(group);
            } catch (const Error& e) {
                ends[group.rank()] = e.what();
            }
        });
    }
    threads.clear();
    return ends;
}

TEST(HostMemory, EveryRankReadsAndWritesEveryWindow) {
    for (const int size : {1, 3, 5}) {
        const auto ends = run_group(size, [size](const Group& group) {
            const auto memory = make_host_memory(group, 8 * 1024);
            EXPECT_EQ(memory->bytes(), 8 * 1024);
            for (int r = 0; r < size; ++r) {
                EXPECT_EQ(memory->base(r)[1000 + group.rank()], std::byte{0});
            }
            group.state().barrier(group.rank(), "barrier");
            for (int r = 0; r < size; ++r) {
                memory->base(r)[1000 + group.rank()] = static_cast<std::byte>(group.rank() + 1);
            }
            group.state().barrier(group.rank(), "barrier");
            for (int from = 0; from < size; ++from) {
                for (int to = 0; to < size; ++to) {
                    EXPECT_EQ(memory->base(to)[1000 + from], static_cast<std::byte>(from + 1));
                }
            }
        });
        for (const std::string& end : ends) EXPECT_EQ(end, "");
    }
}

// A rank's window may still be read when the rank has gone.
TEST(HostMemory, AWindowOutlivesItsRank) {
    run_group(2, [](const Group& group) {
        auto memory = make_host_memory(group, 4096);
        memory->base(group.rank())[7] = std::byte{42};
        group.state().barrier(group.rank(), "barrier");
        if (group.rank() == 1) memory.reset();
        group.state().barrier(group.rank(), "barrier");
        if (group.rank() == 1) return;
        EXPECT_EQ(memory->base(1)[7], std::byte{42});
    });
}

TEST(Agreement, OneRanksSentenceIsEveryRanks) {
    const auto ends = run_group(4, [](const Group& group) {
        agree(group, "", "agreement");
        agree(group, group.rank() >= 2 ? "rank " + std::to_string(group.rank()) + " cannot" : "",
              "agreement");
    });
    for (const std::string& end : ends) EXPECT_EQ(end, "rank 2 cannot");
}

}  // namespace
}  // namespace mok::comm
