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

// How many tickets of a forward are one product on Blackwell, where tasks of different weights take
// turns (src/kernels/blackwell_pair.cuh): those of two neighbouring row tiles of one expert and
// part. Odd numbers of tiles leave some over.
TEST(Pairing, MostTicketsOfALargeLayerAreOneProduct) {
    Problem p{};
    p.num_ranks = 8;
    p.hidden = 7168;
    p.intermediate = 2048;
    p.num_experts = 48;
    p.top_k = 8;
    p.max_tokens = 2048;
    p.minibatch_rows = 2176;
    p.macrobatch_rows = 131072;
    Rng rng(1);
    const Batch batch =
        make_batch(p, Routing::Zipf, std::vector<int32_t>(p.num_ranks, p.max_tokens), rng);
    int64_t tickets = 0, products = 0;
    for (p.rank = 0; p.rank < p.num_ranks; ++p.rank) {
        p.num_tokens = batch.num_tokens[p.rank];
        const OwnedTable owned(p, batch);
        const Pass pass{PassKind::Forward, p, owned.table};
        const int64_t tasks = count(pass, Role::Compute);
        for (int64_t i = 0; i < tasks; i += 2) {
            ++tickets;
            if (i + 1 == tasks) continue;
            const Task a = decode(pass, Role::Compute, i), b = decode(pass, Role::Compute, i + 1);
            products += run_in_step(p, a, b) && a.part == b.part &&
                        owned.table.tile_expert[a.tile] == owned.table.tile_expert[b.tile];
        }
    }
    std::printf("%ld of %ld tickets are one product\n", long(products), long(tickets));
    EXPECT_GT(double(products), 0.9 * double(tickets));
}

}  // namespace
}  // namespace mok::plan
