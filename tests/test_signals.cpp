#include <gtest/gtest.h>

#include <map>
#include <string>

#include "pass_fixture.h"
#include "plan_fixture.h"
#include "task_graph.h"

namespace mok::plan {
namespace {

using namespace fixture;

// What a signal counts to, from the tasks and rows of a tile (design.md sections 4 to 6). Compute
// tasks count by 16 rows of a tile.
uint32_t full_count(const Pass& pass, SignalKind kind, int32_t index) {
    const Problem& p = pass.problem;
    const bool forward = pass.kind == PassKind::Forward || pass.kind == PassKind::Recompute;
    const auto tiles = [](int32_t size, int32_t width) { return (size + width - 1) / width; };
    const bool shared = kind != SignalKind::WgradDone && index >= max_tiles(p);
    const int32_t width = shared ? p.shared_intermediate : p.intermediate;
    switch (kind) {
        case SignalKind::XReady:
        case SignalKind::DYReady:
        case SignalKind::Sent:
            return 128;
        case SignalKind::GateUpReady:
            return 128 / 16 * tiles(width, 128);
        case SignalKind::HiddenReady:
            return 128 / 16 * tiles(width, forward ? 128 : 256);
        case SignalKind::OutReady:
            return 128 / 16 * tiles(p.hidden, 256);
        default:
            return 128 / 16 *
                   (2 * tiles(width, 128) * tiles(p.hidden, 256) +
                    tiles(p.hidden, 128) * tiles(width, 256));
    }
}

void expect_waits_match_arrivals(const Pass& pass) {
    const Problem& p = pass.problem;
    std::map<std::pair<SignalKind, int32_t>, uint32_t> arrived;
    std::map<int32_t, std::pair<SignalKind, int32_t>> owner;  // of a signal's index
    const auto visit_tasks = [&](auto&& visit) {
        for (const Role role : {Role::Compute, Role::Comm}) {
            for (int64_t i = 0; i < count(pass, role); ++i) visit(decode(pass, role, i));
        }
    };
    const auto own_index = [&](SignalKind kind, int32_t index) {
        const int32_t place = signal_index(p, kind, index);
        ASSERT_GE(place, 0);
        ASSERT_LT(place, num_signals(p));
        const auto key = std::pair(kind, index);
        ASSERT_EQ(owner.emplace(place, key).first->second, key) << "two signals in one place";
    };
    visit_tasks([&](const Task& task) {
        for_each_arrival(pass, task, [&](const Arrival& arrival) {
            own_index(arrival.kind, arrival.index);
            EXPECT_GT(arrival.count, 0u);
            if (role_of(task.kind) == Role::Compute) {
                EXPECT_EQ(arrival.count, 8u) << task_name(task.kind);  // one for 16 rows
            }
            arrived[{arrival.kind, arrival.index}] += arrival.count;
        });
    });
    for (const auto& [signal, sum] : arrived) {
        ASSERT_EQ(sum, full_count(pass, signal.first, signal.second))
            << signal_name(signal.first) << " " << signal.second;
    }
    visit_tasks([&](const Task& task) {
        for_each_wait(pass, task, [&](const Wait& wait) {
            own_index(wait.kind, wait.index);
            const auto found = arrived.find({wait.kind, wait.index});
            ASSERT_TRUE(found != arrived.end())
                << task_name(task.kind) << " of tile " << task.tile << " piece " << task.piece
                << " waits for " << signal_name(wait.kind) << " " << wait.index
                << ", where nobody arrives";
            ASSERT_EQ(wait.want, found->second) << signal_name(wait.kind) << " " << wait.index;
        });
    });
}

// ---- Workers that claim by ticket -------------------------------------------------------------
struct Workers {
    int32_t compute, comm;
};

// Plays a pass: at every step one worker, drawn at random, claims the next task of its role, begins
// a claimed task whose waits are met, or ends a begun one, so that any number of events of others
// falls between a task's claim, begin and end. Some workers are drawn rarely: they stall.
class TicketSimulation {
  public:
    TicketSimulation(const TaskGraph& graph, Workers workers, uint64_t seed)
        : graph_(graph), rng_(seed), signals_(graph.arrivers.size(), 0) {
        for (int32_t i = 0; i < workers.compute; ++i) workers_.push_back({Role::Compute});
        for (int32_t i = 0; i < workers.comm; ++i) workers_.push_back({Role::Comm});
        for (Worker& worker : workers_) worker.stalls = rng_() % 3 == 0;
        end_[0] = graph.num_compute;
        next_[1] = graph.num_compute;
        end_[1] = graph.size();
    }
    // Empty where every task ended, else the first task that waits for ever.
    std::string run() {
        while (ended_ < graph_.size()) {
            bool moved = false;
            for (int32_t tries = 0; tries < 8 && !moved; ++tries) {
                Worker& worker = workers_[rng_() % workers_.size()];
                if (!worker.stalls || rng_() % 16 == 0) moved = step(worker);
            }
            for (size_t i = 0; i < workers_.size() && !moved; ++i) moved = step(workers_[i]);
            if (!moved) return stuck();
        }
        return "";
    }

  private:
    enum class State { Idle, Claimed, Running };
    struct Worker {
        Role role;
        State state = State::Idle;
        int32_t task = -1;
        bool stalls = false;
    };

    bool step(Worker& worker) {
        const auto role = static_cast<int32_t>(worker.role);
        switch (worker.state) {
            case State::Idle:
                if (next_[role] == end_[role]) return false;
                worker.task = next_[role]++;
                worker.state = State::Claimed;
                return true;
            case State::Claimed:
                for (const auto& [signal, want] : graph_.nodes[worker.task].waits) {
                    if (signals_[signal] < want) return false;
                }
                worker.state = State::Running;
                return true;
            default:
                for (const auto& [signal, count] : graph_.nodes[worker.task].arrivals) {
                    signals_[signal] += count;
                }
                worker.state = State::Idle;
                ++ended_;
                return true;
        }
    }
    std::string stuck() const {
        for (const Worker& worker : workers_) {
            if (worker.state != State::Claimed) continue;
            const Task& task = graph_.nodes[worker.task].task;
            return std::string(task_name(task.kind)) + " of tile " + std::to_string(task.tile) +
                   " piece " + std::to_string(task.piece) + " waits for ever";
        }
        return "no task is claimed";
    }

    const TaskGraph& graph_;
    Rng rng_;
    std::vector<uint32_t> signals_;
    std::vector<Worker> workers_;
    int32_t next_[kNumRoles] = {0, 0};
    int32_t end_[kNumRoles];
    int32_t ended_ = 0;
};

void expect_every_task_ends(const Pass& pass, uint64_t seed, std::initializer_list<Workers> all) {
    const TaskGraph graph(pass);
    for (const Workers& workers : all) {
        ASSERT_EQ(TicketSimulation(graph, workers, ++seed).run(), "")
            << workers.compute << " compute and " << workers.comm << " communication workers";
    }
    // Any task whose waits are met may run: no circle of waits.
    ASSERT_EQ(static_cast<int32_t>(HappensBefore(graph).order().size()), graph.size());
}

TEST(Signals, EveryWaitIsForAWholeSignal) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for (const int32_t tokens : {60, 700}) {
            for_each_routing(ranks, tokens, 600 + ranks,
                             [](const Problem& p, const Batch&, const OwnedTable& owned) {
                                 for_each_pass(p, owned.table, expect_waits_match_arrivals);
                             });
            if (HasFailure()) return;
        }
    }
}

// One worker a role is the hardest case: more workers claim the same tasks in the same order.
TEST(Signals, NoDeadlockForEveryNumberOfRanks) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for_each_routing(ranks, 900, 800 + ranks,
                         [&](const Problem& p, const Batch&, const OwnedTable& owned) {
                             for_each_pass(p, owned.table, [&](const Pass& pass) {
                                 expect_every_task_ends(pass, ranks, {{1, 1}, {1, 3}, {2, 1}});
                             });
                         });
        if (HasFailure()) return;
    }
}

TEST(Signals, NoDeadlockForAnyNumberOfWorkers) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        const auto ranks = static_cast<int32_t>(1 + seed % 5);
        for_each_routing(
            ranks, 1200, 1000 + seed, [&](const Problem& p, const Batch&, const OwnedTable& owned) {
                for_each_pass(p, owned.table, [&](const Pass& pass) {
                    expect_every_task_ends(
                        pass, seed, {{1, 1}, {1, 3}, {2, 1}, {7, 5}, {3, 64}, {64, 3}, {200, 40}});
                });
            });
        if (HasFailure()) return;
    }
}

// FP8 changes what dispatch waits for.
TEST(Signals, InFp8) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const auto ranks = static_cast<int32_t>(1 + seed % 5);
        for_each_routing(ranks, 1200, 1500 + seed,
                         [&](Problem p, const Batch&, const OwnedTable& owned) {
                             p.precision = Precision::Mxfp8;
                             for_each_pass(p, owned.table, [&](const Pass& pass) {
                                 expect_waits_match_arrivals(pass);
                                 expect_every_task_ends(pass, seed, {{1, 1}, {1, 3}, {7, 5}});
                             });
                         });
        if (HasFailure()) return;
    }
}

TEST(Signals, ManyExperts) {
    for_many_experts([](const Problem& p, const Batch&, const OwnedTable& owned) {
        for_each_pass(p, owned.table, [](const Pass& pass) {
            expect_waits_match_arrivals(pass);
            expect_every_task_ends(pass, 1, {{1, 1}, {7, 5}});
        });
    });
}

}  // namespace
}  // namespace mok::plan
