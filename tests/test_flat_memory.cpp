// Case 19: memory grew by each step: contexts, events or tables that nobody freed. Not for
// sanitizers: they keep freed memory back.
#include <malloc.h>

#include <fstream>

#include "comm/group_state.h"
#include "layer_fixture.h"

namespace mok_test {
namespace {

int64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
    }
    return 0;
}

TEST(Case19, ThousandStepsNeedNoMoreMemoryThanAHundred) {
    CaseOptions options = case_of(16, 64, 32);
    options.seed = 13;
    const RandomCase c = cli::random_case(options);
    std::vector<int64_t> allocated, resident;
    cli::run_ranks(Group::in_process(2), [&](const Group& g) {
        Workspace w(g, c.shape, {}, 8);
        for (int step = 0; step < 1000; ++step) {
            run_step(w, c, 8 * g.rank(), 8);
            if (step != 99 && step != 999) continue;
            g.state().barrier(g.rank(), "barrier before measuring");
            if (g.rank() == 0) {
                const struct mallinfo2 info = mallinfo2();
                allocated.push_back(static_cast<int64_t>(info.uordblks + info.hblkhd));
                resident.push_back(resident_kib());
            }
            g.state().barrier(g.rank(), "barrier after measuring");
        }
    });
    // A leak of 100 bytes per step would be 90 kB; the resident size moves by whole arenas.
    EXPECT_LE(allocated[1], allocated[0] + 32 * 1024);
    EXPECT_LE(resident[1], resident[0] + 8 * 1024);
}

}  // namespace
}  // namespace mok_test
