#include "kernels/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "plan/program.h"
#include "plan_fixture.h"

// How long CTAs of a grid that is larger than the GPU go on (units.h), on hardware that is made up:
// multiprocessors become free for CTAs in any order, requests are refused at random, and other
// kernels take multiprocessors away for a while.
namespace mok::kernels {
namespace {

using plan::fixture::Rng;

struct Grid {
    uint32_t total, pending;  // CTAs; not launched or taken over yet
    uint32_t begun = 0;       // units
    Rng rng;
    int refuse_percent;  // of the requests that could be met
};

class FakeLauncher {
  public:
    explicit FakeLauncher(Grid& grid) : grid_(&grid) {}

    uint32_t begin_unit() { return ++grid_->begun; }
    void ask() {
        EXPECT_FALSE(refused_) << "asked after a refusal";
        EXPECT_FALSE(asked_) << "asked twice";
        asked_ = true;
        Grid& g = *grid_;
        const bool refuses = static_cast<int>(g.rng() % 100) < g.refuse_percent;
        yes_ = g.pending > 0 && !refuses;
        if (yes_) --g.pending;
    }
    bool answer() {
        EXPECT_TRUE(asked_);
        asked_ = false;
        refused_ = !yes_;
        return yes_;
    }
    bool all_begun(uint32_t total) const { return grid_->begun == total; }

  private:
    Grid* grid_;
    bool asked_ = false, refused_ = false, yes_ = false;
};

// A cluster of CTAs as the kernels have it: one scheduler takes compute tasks for all, each
// exchange communication tasks until the scheduler has said that the CTAs leave.
struct Cluster {
    Units<FakeLauncher> units;
    int exchanging;
    bool computes = true, leaving = false;
};

struct Claims {
    uint64_t hash = 14695981039346656037u;  // FNV-1a of the tasks in the order of their tickets
    uint32_t compute = 0, comm = 0;         // tickets that were in range
    int left_early = 0;
};

uint64_t with(uint64_t hash, const plan::Task& t) {
    for (const int32_t value : {static_cast<int32_t>(t.kind), t.tile, t.part, t.macro, t.piece}) {
        for (int byte = 0; byte < 4; ++byte) {
            hash = (hash ^ (static_cast<uint32_t>(value) >> 8 * byte & 255)) * 1099511628211u;
        }
    }
    return hash;
}

// Every task that the claims give, compute tasks by ticket, then communication tasks.
Claims hashed(const plan::Pass& pass, Claims run, int64_t num_compute, int64_t num_comm) {
    for (int64_t i = 0; i < std::min<int64_t>(run.compute, num_compute); ++i) {
        run.hash = with(run.hash, plan::decode(pass, plan::Role::Compute, i));
    }
    for (int64_t i = 0; i < std::min<int64_t>(run.comm, num_comm); ++i) {
        run.hash = with(run.hash, plan::decode(pass, plan::Role::Comm, i));
    }
    return run;
}

// Hopper: every CTA takes tickets to the end of the program.
Claims by_resident_ctas(const plan::Pass& pass, int64_t num_compute, int64_t num_comm) {
    Claims run;
    while (run.compute < num_compute) ++run.compute;
    while (run.comm < num_comm) ++run.comm;
    return hashed(pass, run, num_compute, num_comm);
}

// Blackwell: room for `room` clusters of `ctas` CTAs, a grid of `total` clusters.
struct Shape {
    int room;
    uint32_t total;
    int ctas = 1;
};
Claims by_launched_ctas(const plan::Pass& pass, int64_t num_compute, int64_t num_comm,
                        const Shape& shape, int refuse_percent, uint64_t seed) {
    Grid grid{shape.total, shape.total, 0, Rng(seed), refuse_percent};
    const uint32_t tickets = tickets_per_unit(num_compute, shape.total * shape.ctas);
    std::vector<std::unique_ptr<Cluster>> running;
    Claims run;
    while (grid.pending > 0 || !running.empty()) {
        const bool room = running.size() < static_cast<size_t>(shape.room);
        if (grid.pending > 0 && room && (running.empty() || grid.rng() % 3 == 0)) {
            --grid.pending;
            running.push_back(std::make_unique<Cluster>(
                Cluster{{shape.total, tickets, FakeLauncher(grid)}, shape.ctas}));
            continue;
        }
        Cluster& c = *running[grid.rng() % running.size()];
        if (grid.rng() % 2 == 0 && c.computes) {
            if (!c.units.take()) {
                c.computes = false;
                c.leaving = true;
                ++run.left_early;
            } else if (run.compute < num_compute) {
                run.compute += std::min<uint32_t>(shape.ctas, num_compute - run.compute);
            } else {
                c.computes = false;
                c.units.end();
            }
        } else if (c.exchanging > 0) {
            if (c.leaving || run.comm == num_comm) {
                --c.exchanging;
            } else {
                ++run.comm;
            }
        }
        std::erase_if(running, [](const auto& c) { return !c->computes && c->exchanging == 0; });
    }
    EXPECT_EQ(grid.begun, shape.total);
    return hashed(pass, run, num_compute, num_comm);
}

// 100 seeded problems: whichever way the tasks are claimed, they are all claimed, and the list is
// the same.
TEST(Units, BothWaysOfClaimingGiveTheSameTasks) {
    int problems = 0, left_early = 0;
    for (uint64_t seed = 0; problems < 100; ++seed) {
        const int32_t ranks = std::vector{1, 2, 3, 8, 72}[seed % 5];
        plan::fixture::for_each_routing(
            ranks, 500, seed, [&](const plan::Problem& p, const auto&, const auto& owned) {
                ++problems;
                const plan::PassKind kind =
                    problems % 2 == 0 ? plan::PassKind::Forward : plan::PassKind::Backward;
                const plan::Pass pass{kind, p, owned.table};
                const int64_t compute = plan::count(pass, plan::Role::Compute);
                const int64_t comm = plan::count(pass, plan::Role::Comm);
                const Claims expected = by_resident_ctas(pass, compute, comm);
                Rng rng(seed);
                for (const int refuse_percent : {0, 5, 50, 100}) {
                    for (const Shape& shape :
                         {Shape{1, 1}, Shape{1, 16}, Shape{3, 3}, Shape{3, 48}, Shape{16, 16},
                          Shape{16, 256}, Shape{1, 1, 2}, Shape{1, 16, 2}, Shape{8, 128, 2}}) {
                        const Claims run =
                            by_launched_ctas(pass, compute, comm, shape, refuse_percent, rng());
                        ASSERT_EQ(run.compute, compute);
                        ASSERT_EQ(run.comm, comm);
                        ASSERT_EQ(run.hash, expected.hash);
                        left_early += run.left_early;
                    }
                }
            });
        if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(left_early, 100);  // CTAs did leave
}

// While nobody refuses, no CTA leaves before the end.
TEST(Units, StaysWhereNobodyWantsTheMultiprocessor) {
    Rng rng(1);
    plan::fixture::for_each_routing(
        4, 500, 1, [&](const plan::Problem& p, const auto&, const auto& owned) {
            const plan::Pass pass{plan::PassKind::Forward, p, owned.table};
            const int64_t compute = plan::count(pass, plan::Role::Compute);
            // One multiprocessor: its CTA takes over all others.
            const Claims run = by_launched_ctas(pass, compute, plan::count(pass, plan::Role::Comm),
                                                {1, 16}, 0, rng());
            EXPECT_EQ(run.left_early, 0);
        });
}

// Where the hardware refuses everything, a CTA ends within its unit.
TEST(Units, LeavesWithinAUnit) {
    Grid grid{100, 99, 0, Rng(1), 100};
    Units<FakeLauncher> units(100, 7, FakeLauncher(grid));
    int taken = 0;
    while (units.take()) ++taken;
    EXPECT_EQ(taken, 7);
}

// The units of a grid have tickets for all tasks, of single CTAs and of pairs.
TEST(Units, CoverTheProgram) {
    for (const int64_t ctas : {1, 2}) {
        for (int64_t clusters = 1; clusters < 80; ++clusters) {
            for (int64_t tasks = 0; tasks < 700; ++tasks) {
                const int64_t tickets = (tasks + ctas - 1) / ctas;
                const auto per_unit =
                    tickets_per_unit(tasks, static_cast<uint32_t>(clusters * ctas));
                ASSERT_GE(clusters * per_unit, tickets) << tasks << " tasks";
                if (per_unit > 0) {
                    ASSERT_LT(clusters * (per_unit - 1), tickets) << tasks << " tasks";
                }
            }
        }
    }
}

// The unit that begins last has nobody behind it.
TEST(Units, TheLastStays) {
    Grid grid{3, 0, 2, Rng(1), 0};
    Units<FakeLauncher> units(3, 1, FakeLauncher(grid));
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(units.take());
}

}  // namespace
}  // namespace mok::kernels
