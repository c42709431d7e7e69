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

// A CTA as the kernels have it: the scheduler takes compute tasks, the exchange communication tasks
// until the scheduler has said that the CTA leaves.
struct Cta {
    Units<FakeLauncher> units;
    bool computes = true, exchanges = true, leaving = false;
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

// Blackwell: `sms` multiprocessors, a grid of `total` CTAs.
Claims by_launched_ctas(const plan::Pass& pass, int64_t num_compute, int64_t num_comm, int sms,
                        uint32_t total, int refuse_percent, uint64_t seed) {
    Grid grid{total, total, 0, Rng(seed), refuse_percent};
    const auto per_unit = static_cast<uint32_t>(plan::ceil_div64(num_compute, total));
    std::vector<std::unique_ptr<Cta>> running;
    Claims run;
    while (grid.pending > 0 || !running.empty()) {
        const bool room = running.size() < static_cast<size_t>(sms);
        if (grid.pending > 0 && room && (running.empty() || grid.rng() % 3 == 0)) {
            --grid.pending;
            running.push_back(std::make_unique<Cta>(Cta{{total, per_unit, FakeLauncher(grid)}}));
            continue;
        }
        Cta& cta = *running[grid.rng() % running.size()];
        if (grid.rng() % 2 == 0 && cta.computes) {
            if (!cta.units.take()) {
                cta.computes = false;
                cta.leaving = true;
                ++run.left_early;
            } else if (run.compute < num_compute) {
                ++run.compute;
            } else {
                cta.computes = false;
                cta.units.end();
            }
        } else if (cta.exchanges) {
            if (cta.leaving || run.comm == num_comm) {
                cta.exchanges = false;
            } else {
                ++run.comm;
            }
        }
        std::erase_if(running, [](const auto& c) { return !c->computes && !c->exchanges; });
    }
    EXPECT_EQ(grid.begun, total);
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
                    for (const int sms : {1, 3, 16}) {
                        for (const uint32_t total : {uint32_t(sms), uint32_t(16 * sms)}) {
                            const Claims run = by_launched_ctas(pass, compute, comm, sms, total,
                                                                refuse_percent, rng());
                            ASSERT_EQ(run.compute, compute);
                            ASSERT_EQ(run.comm, comm);
                            ASSERT_EQ(run.hash, expected.hash);
                            left_early += run.left_early;
                        }
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
                                                1, 16, 0, rng());
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

// The unit that begins last has nobody behind it.
TEST(Units, TheLastStays) {
    Grid grid{3, 0, 2, Rng(1), 0};
    Units<FakeLauncher> units(3, 1, FakeLauncher(grid));
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(units.take());
}

}  // namespace
}  // namespace mok::kernels
