#include <gtest/gtest.h>

#include <vector>

#include "kernels/pair_wgrad.h"
#include "pass_fixture.h"
#include "plan_fixture.h"
#include "task_graph.h"

// Pairs of CTAs (src/kernels/pair.cuh) work on tasks 2i and 2i + 1 of the compute order in step
// where both are of one kind and of one macrobatch, or both of the shared expert; in a backward
// where they also have the same operand B (backward_pair_scheduler.cuh). Then neither may wait for
// the other, through whatever other tasks: the two would wait for each other's progress.
namespace mok::plan {
namespace {

using namespace fixture;

// The task of a backward that a pair works on in the place of task i.
Task in_pairs(const Pass& pass, Task task, int64_t i) {
    if (task.kind != TaskKind::DownWgrad) return task;
    const Problem& p = pass.problem;
    task.part = kernels::part_for_pairs(task.part, i - task.part, ceil_div(p.hidden, kWgradRows),
                                        ceil_div(width_of(p, task.piece < 0), kWgradCols));
    return task;
}
// Of a weight gradient: the columns of its tile, and so of B.
int32_t column_of(const Problem& p, const Task& t) {
    const int32_t width = width_of(p, t.piece < 0);
    const bool down = t.kind == TaskKind::DownWgrad;
    return wgrad_tile(t.kind, down ? p.hidden : width, down ? width : p.hidden, t.part).col;
}
// Whether two neighbouring tasks of a backward are one product.
bool have_same_b(const Pass& pass, const Task& a, const Task& b) {
    const Problem& p = pass.problem;
    if (a.kind != b.kind) return false;
    if (is_wgrad(a.kind)) return a.piece == b.piece && column_of(p, a) == column_of(p, b);
    const bool shared = is_shared_tile(p, a.tile);
    if (shared != is_shared_tile(p, b.tile) || a.part != b.part) return false;
    return shared || (macrobatch_of_tile(p, a.tile) == macrobatch_of_tile(p, b.tile) &&
                      pass.table.tile_expert[a.tile] == pass.table.tile_expert[b.tile]);
}

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
        const bool in_step = is_backward(pass.kind) ? have_same_b(pass, in_pairs(pass, first, i),
                                                                  in_pairs(pass, second, i + 1))
                                                    : run_in_step(pass.problem, first, second);
        if (!in_step) continue;
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
                                 expect_pairs_are_independent(pass, paired);
                             });
                         });
        if (HasFailure()) return;
    }
    EXPECT_GT(paired, 1000);
}

// A piece's parts in another order: each once, and those of a pair one below the other, but for the
// first and the last where the piece begins in the middle of a pair.
TEST(Pairing, PartsOfDownAreAllWorkedOn) {
    for (int32_t rows = 1; rows <= 6; ++rows) {
        for (int32_t cols = 1; cols <= 5; ++cols) {
            for (int64_t begin = 0; begin < 2; ++begin) {
                const int32_t parts = rows * cols;
                std::vector<int32_t> times(parts, 0);
                for (int32_t part = 0; part < parts; ++part) {
                    ++times.at(kernels::part_for_pairs(part, begin, rows, cols));
                }
                EXPECT_EQ(times, std::vector<int32_t>(parts, 1));
                if (rows % 2 != 0) continue;
                for (auto part = static_cast<int32_t>(begin); part + 1 < parts; part += 2) {
                    const int32_t first = kernels::part_for_pairs(part, begin, rows, cols);
                    EXPECT_EQ(kernels::part_for_pairs(part + 1, begin, rows, cols), first + cols);
                    EXPECT_EQ(first / cols % 2, 0);
                }
            }
        }
    }
}

// How many tickets of a pass are one product on Blackwell, where tasks of different weights take
// turns (src/kernels/blackwell_pair.cuh): those of two neighbouring row tiles of one expert and
// part, or of two tiles of a weight gradient one below the other. Odd numbers of tiles leave some
// over.
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
    for (const PassKind kind : {PassKind::Forward, PassKind::Backward}) {
        int64_t tickets = 0, products = 0;
        for (p.rank = 0; p.rank < p.num_ranks; ++p.rank) {
            p.num_tokens = batch.num_tokens[p.rank];
            const OwnedTable owned(p, batch);
            const Pass pass{kind, p, owned.table};
            const int64_t tasks = count(pass, Role::Compute);
            for (int64_t i = 0; i < tasks; i += 2) {
                ++tickets;
                if (i + 1 == tasks) continue;
                const Task a = decode(pass, Role::Compute, i);
                const Task b = decode(pass, Role::Compute, i + 1);
                products += have_same_b(pass, in_pairs(pass, a, i), in_pairs(pass, b, i + 1));
            }
        }
        std::printf("%s: %ld of %ld tickets are one product\n",
                    kind == PassKind::Forward ? "forward" : "backward", long(products),
                    long(tickets));
        EXPECT_GT(double(products), 0.9 * double(tickets));
    }
}

}  // namespace
}  // namespace mok::plan
