#include <gtest/gtest.h>

#include "pass_fixture.h"
#include "plan_fixture.h"
#include "task_graph.h"

// Pairs of CTAs (src/kernels/pair.cuh) work on tasks 2i and 2i + 1 of the compute order in step
// where both are of one kind and of one macrobatch, or both of the shared expert. Then neither may
// wait for the other, through whatever other tasks: the two would wait for each other's progress.
namespace mok::plan {
namespace {

using namespace fixture;

bool run_in_step(const Problem& p, const Task& a, const Task& b) {
    const bool shared = is_shared_tile(p, a.tile);
    if (a.kind != b.kind || shared != is_shared_tile(p, b.tile)) return false;
    return shared || macrobatch_of_tile(p, a.tile) == macrobatch_of_tile(p, b.tile);
}

void expect_pairs_are_independent(const Pass& pass, int64_t& paired) {
    const TaskGraph graph(pass);
    const HappensBefore relation(graph);
    for (int32_t i = 0; i + 1 < graph.num_compute; i += 2) {
        const Task &first = graph.nodes[i].task, &second = graph.nodes[i + 1].task;
        if (!run_in_step(pass.problem, first, second)) continue;
        ++paired;
        EXPECT_FALSE(relation.ends_before(i, i + 1) || relation.ends_before(i + 1, i))
            << task_name(first.kind) << " tiles " << first.tile << " and " << second.tile;
    }
}

TEST(Pairing, NeitherOfAPairWaitsForTheOther) {
    int64_t paired = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
        const auto ranks = static_cast<int32_t>(1 + seed % 4);
        for_each_routing(ranks, 500, 1700 + seed,
                         [&](const Problem& p, const Batch&, const OwnedTable& owned) {
                             for_each_pass(p, owned.table, [&](const Pass& pass) {
                                 if (is_backward(pass.kind)) return;
                                 expect_pairs_are_independent(pass, paired);
                             });
                         });
        if (HasFailure()) return;
    }
    EXPECT_GT(paired, 1000);
}

}  // namespace
}  // namespace mok::plan
