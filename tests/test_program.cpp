#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "pass_fixture.h"
#include "plan/reader.h"
#include "plan_fixture.h"

namespace mok::plan {
namespace {

using namespace fixture;

// A task by what it does: (kind, shared, tile or expert, part, begin slot, end slot of a piece).
using Work = std::tuple<TaskKind, bool, int32_t, int32_t, int32_t, int32_t>;

// The tasks of each pass from design.md sections 5 and 6, by plain loops.
class ExpectedWork {
  public:
    explicit ExpectedWork(const Pass& pass) : pass_(pass), p_(pass.problem), t_(pass.table) {
        const int32_t kept = p_.context_rows, all = num_slots(t_);
        const int32_t x_from = p_.keep_x ? kept : 0;
        switch (pass.kind) {
            case PassKind::Forward:
                rows(TaskKind::DispatchX, 0, all, 16);
                rows(TaskKind::GateUp, 0, all, gate_up(false));
                rows(TaskKind::Down, 0, all, out());
                rows(TaskKind::CombineY, 0, all, 16);
                shared(TaskKind::GateUp, gate_up(true));
                shared(TaskKind::Down, out());
                break;
            case PassKind::Recompute:
                rows(TaskKind::DispatchX, 0, kept, 16);
                rows(TaskKind::GateUp, 0, kept, gate_up(false));
                shared(TaskKind::GateUp, gate_up(true));
                break;
            case PassKind::Backward:
            case PassKind::BackwardInput:
                // x serves the replay and, in a backward, the weight gradients.
                rows(TaskKind::DispatchX, pass.kind == PassKind::Backward ? x_from : kept, all, 16);
                rows(TaskKind::DispatchDY, 0, all, 16);
                rows(TaskKind::Replay, kept, all, gate_up(false));
                rows(TaskKind::DownDgrad, 0, all, down_dgrad(false));
                rows(TaskKind::GateUpDgrad, 0, all, out());
                rows(TaskKind::CombineDX, 0, all, 16);
                shared(TaskKind::DownDgrad, down_dgrad(true));
                shared(TaskKind::GateUpDgrad, out());
                if (pass.kind == PassKind::Backward) wgrads();
                break;
            case PassKind::Wgrad:
                rows(TaskKind::DispatchX, x_from, all, 16);
                rows(TaskKind::DispatchDY, x_from, all, 16);
                rows(TaskKind::Replay, kept, all, gate_up(false));
                rows(TaskKind::DownDgrad, kept, all, down_dgrad(false));
                wgrads();
                break;
        }
    }
    std::set<Work> work[kNumRoles];

  private:
    static int32_t tiles(int32_t size, int32_t width) { return (size + width - 1) / width; }
    int32_t gate_up(bool shared) const {
        return tiles(shared ? p_.shared_intermediate : p_.intermediate, 128);
    }
    int32_t down_dgrad(bool shared) const {
        return tiles(shared ? p_.shared_intermediate : p_.intermediate, 256);
    }
    int32_t out() const { return tiles(p_.hidden, 256); }

    void add(TaskKind kind, bool shared, int32_t tile, int32_t parts, int32_t begin, int32_t end) {
        const bool comm = kind == TaskKind::DispatchX || kind == TaskKind::DispatchDY ||
                          kind == TaskKind::CombineY || kind == TaskKind::CombineDX;
        auto& set = work[static_cast<int>(comm ? Role::Comm : Role::Compute)];
        for (int32_t i = 0; i < parts; ++i) set.insert({kind, shared, tile, i, begin, end});
    }
    void rows(TaskKind kind, int32_t from, int32_t to, int32_t parts) {
        for (int32_t slot = 0; slot < num_slots(t_); slot += 128) {
            if (slot >= from && slot < to) add(kind, false, slot / 128, parts, -1, -1);
        }
    }
    void shared(TaskKind kind, int32_t parts) {
        if (p_.shared_intermediate == 0) return;
        for (int32_t token = 0; token < p_.num_tokens; token += 128) {
            add(kind, true, max_tiles(p_) + token / 128, parts, -1, -1);
        }
    }
    void expert(bool shared, int32_t e, int32_t begin, int32_t end) {
        const int32_t width = shared ? p_.shared_intermediate : p_.intermediate;
        const int32_t gate = tiles(width, 128) * tiles(p_.hidden, 256);
        add(TaskKind::GateWgrad, shared, e, gate, begin, end);
        add(TaskKind::UpWgrad, shared, e, gate, begin, end);
        add(TaskKind::DownWgrad, shared, e, tiles(p_.hidden, 128) * tiles(width, 256), begin, end);
    }
    void wgrads() {
        if (p_.shared_intermediate > 0) expert(true, -1, -1, -1);
        for (int32_t e = 0; e < num_local_experts(p_); ++e) {
            const int32_t first = t_.segment_begin[e], last = t_.segment_begin[e + 1];
            if (first == last) expert(false, e, first, last);
            for (int32_t begin = first; begin < last;) {
                const int32_t bound = (begin / p_.macrobatch_rows + 1) * p_.macrobatch_rows;
                expert(false, e, begin, std::min(bound, last));
                begin = std::min(bound, last);
            }
        }
    }

    const Pass& pass_;
    const Problem& p_;
    const RouteTable& t_;
};

Work work_of(const Pass& pass, const Task& task) {
    if (!is_wgrad(task.kind)) {
        const bool shared = task.tile >= max_tiles(pass.problem);
        return {task.kind, shared, task.tile, task.part, -1, -1};
    }
    if (task.piece < 0) return {task.kind, true, -1, task.part, -1, -1};
    const Piece piece = piece_at(pass.problem, pass.table, task.macro, task.piece);
    return {task.kind, false, piece.expert, task.part, piece.begin, piece.end};
}

void expect_every_task_once(const Pass& pass) {
    const ExpectedWork expected(pass);
    for (const Role role : {Role::Compute, Role::Comm}) {
        std::set<Work> found;
        const int64_t tasks = count(pass, role);
        for (int64_t i = 0; i < tasks; ++i) {
            const Task task = decode(pass, role, i);
            ASSERT_EQ(role_of(task.kind), role) << task_name(task.kind);
            ASSERT_TRUE(found.insert(work_of(pass, task)).second)
                << task_name(task.kind) << " tile " << task.tile << " piece " << task.piece
                << " part " << task.part << " twice";
        }
        ASSERT_EQ(found.size(), expected.work[static_cast<int>(role)].size());
        ASSERT_EQ(found, expected.work[static_cast<int>(role)]);
    }
}

// ---- Order ------------------------------------------------------------------------------------
// Minibatches in the order of work, as lists of visits: macrobatches up or down, each cut from its
// begin into pieces of b.
std::vector<std::vector<std::vector<int32_t>>> minibatches(const Pass& pass) {
    const Problem& p = pass.problem;
    const int32_t all = num_tiles(pass.table), per_macro = p.macrobatch_rows / 128;
    std::vector<std::vector<std::vector<int32_t>>> macros;
    for (int32_t begin = 0; begin < all; begin += per_macro) {
        std::vector<std::vector<int32_t>> minis;
        for (int32_t visit = begin; visit < std::min(begin + per_macro, all); ++visit) {
            if ((visit - begin) % (p.minibatch_rows / 128) == 0) minis.emplace_back();
            minis.back().push_back(visit);
        }
        macros.push_back(minis);
    }
    if (pass.kind == PassKind::Forward || pass.kind == PassKind::Recompute) {
        std::reverse(macros.begin(), macros.end());
    }
    return macros;
}

struct Step {
    TaskKind kind;
    int32_t lag;
};

// Visits that take part in a phase, those of one expert together, in equal groups of at most 12.
std::vector<std::vector<int32_t>> groups_of(const Pass& pass, TaskKind kind,
                                            const std::vector<int32_t>& visits) {
    std::map<int32_t, std::vector<int32_t>> by_expert;
    for (const int32_t visit : visits) {
        if (routed_range(pass, kind).has(visit)) {
            by_expert[pass.table.tile_expert[visit]].push_back(visit);
        }
    }
    std::vector<std::vector<int32_t>> groups;
    for (const auto& [expert, tiles] : by_expert) {
        const size_t num_groups = (tiles.size() + 11) / 12;
        const size_t size = (tiles.size() + num_groups - 1) / num_groups;
        for (size_t i = 0; i < tiles.size(); i += size) {
            groups.emplace_back(tiles.begin() + i,
                                tiles.begin() + std::min(i + size, tiles.size()));
        }
    }
    return groups;
}

// The pipeline that program.h describes, as (kind, tile, part), before tasks that a pass does not
// have are struck out.
void run_pipeline(const Pass& pass, const std::vector<std::vector<int32_t>>& minis,
                  const std::vector<Step>& phases, const std::set<Work>& work, bool tiles_first,
                  std::vector<Work>& order) {
    const auto add = [&](TaskKind kind, int32_t visit, int32_t part) {
        const Work one{kind, false, tile_at_visit(pass.problem, pass.table, visit), part, -1, -1};
        if (work.count(one) > 0) order.push_back(one);
    };
    const int32_t parts = 64;  // more than any kind has here
    const auto num_minis = static_cast<int32_t>(minis.size());
    for (int32_t s = 0; s < num_minis + phases.back().lag; ++s) {
        for (const Step& phase : phases) {
            if (s < phase.lag || s - phase.lag >= num_minis) continue;
            const std::vector<int32_t>& visits = minis[s - phase.lag];
            if (tiles_first) {
                for (const std::vector<int32_t>& group : groups_of(pass, phase.kind, visits)) {
                    for (int32_t part = 0; part < parts; ++part) {
                        for (const int32_t visit : group) add(phase.kind, visit, part);
                    }
                }
            } else {
                for (const int32_t visit : visits) {
                    for (int32_t part = 0; part < parts; ++part) add(phase.kind, visit, part);
                }
            }
        }
    }
}

// The communication of a backward: d_y of a minibatch, x of the one `lag` before it (of the same
// one where gate and up are replayed) and of all that are left when its macrobatch ends, then d_x
// of the one `lag` before.
void run_backward_comm(const Pass& pass,
                       const std::vector<std::vector<std::vector<int32_t>>>& macros, int32_t lag,
                       const std::set<Work>& work, std::vector<Work>& order) {
    const auto add = [&](TaskKind kind, const std::vector<int32_t>& visits) {
        for (const int32_t visit : visits) {
            for (int32_t part = 0; part < kCommParts; ++part) {
                const int32_t tile = tile_at_visit(pass.problem, pass.table, visit);
                const Work one{kind, false, tile, part, -1, -1};
                if (work.count(one) > 0) order.push_back(one);
            }
        }
    };
    const int32_t x_lag = routed_range(pass, TaskKind::Replay).count() > 0 ? 0 : lag;
    std::vector<std::vector<int32_t>> all;
    for (const auto& macro : macros) all.insert(all.end(), macro.begin(), macro.end());
    const auto num_minis = static_cast<int32_t>(all.size());
    int32_t s = 0, x = 0;
    for (const auto& macro : macros) {
        const auto end = s + static_cast<int32_t>(macro.size());
        for (; s < end; ++s) {
            add(TaskKind::DispatchDY, all[s]);
            for (; x <= (s + 1 == end ? s : s - x_lag); ++x) add(TaskKind::DispatchX, all[x]);
            if (s >= lag) add(TaskKind::CombineDX, all[s - lag]);
        }
    }
    for (; s < num_minis + lag; ++s) {
        if (s >= lag) add(TaskKind::CombineDX, all[s - lag]);
    }
}

void expect_order(const Pass& pass) {
    const ExpectedWork expected(pass);
    const auto macros = minibatches(pass);
    const bool backward = pass.kind != PassKind::Forward && pass.kind != PassKind::Recompute;
    const std::vector<Step> compute =
        backward ? std::vector<Step>{{TaskKind::Replay, 0},
                                     {TaskKind::DownDgrad, 1},
                                     {TaskKind::GateUpDgrad, 2}}
                 : std::vector<Step>{{TaskKind::GateUp, 0}, {TaskKind::Down, 1}};
    const int32_t minis_of_macro =
        (pass.problem.macrobatch_rows + pass.problem.minibatch_rows - 1) /
        pass.problem.minibatch_rows;
    std::vector<Work> order;
    std::vector<std::vector<int32_t>> all_minis;
    for (const auto& macro : macros) {
        all_minis.insert(all_minis.end(), macro.begin(), macro.end());
    }
    if (backward) {
        run_backward_comm(pass, macros, std::min(4, minis_of_macro), expected.work[1], order);
    } else {
        const std::vector<Step> comm{{TaskKind::DispatchX, 0}, {TaskKind::CombineY, 2}};
        run_pipeline(pass, all_minis, comm, expected.work[1], false, order);
    }
    ASSERT_EQ(static_cast<int64_t>(order.size()), count(pass, Role::Comm));
    for (size_t i = 0; i < order.size(); ++i) {
        ASSERT_EQ(work_of(pass, decode(pass, Role::Comm, static_cast<int64_t>(i))), order[i]) << i;
    }

    // Compute: shared tasks first, then block after block; weight gradients end a block.
    int64_t i = 0;
    const int64_t tasks = count(pass, Role::Compute);
    const auto next = [&] { return work_of(pass, decode(pass, Role::Compute, i)); };
    while (i < tasks && std::get<1>(next())) ++i;
    for (const auto& macro : macros) {
        order.clear();
        run_pipeline(pass, macro, compute, expected.work[0], true, order);
        for (const Work& work : order) {
            ASSERT_LT(i, tasks);
            ASSERT_EQ(next(), work) << i;
            ++i;
        }
        int32_t expert = -1;
        while (i < tasks && is_wgrad(std::get<0>(next()))) {
            ASSERT_GE(std::get<2>(next()), expert);
            expert = std::get<2>(next());
            ++i;
        }
    }
    while (i < tasks && is_wgrad(std::get<0>(next()))) ++i;  // no rows at all: gradients still
    ASSERT_EQ(i, tasks);
}

// A reader of the dispatch tasks alone gives these in the order that they have among all.
void expect_reader_dispatches(const Pass& pass) {
    CommReader reader(pass, CommTasks::Dispatches);
    int64_t n = 0;
    for (int64_t i = 0; i < count(pass, Role::Comm); ++i) {
        const Task task = decode(pass, Role::Comm, i);
        if (task.kind == TaskKind::CombineY || task.kind == TaskKind::CombineDX) continue;
        ASSERT_TRUE(reader.seek(n)) << i;
        const Task found = reader.task();
        ASSERT_EQ(std::tie(found.kind, found.tile, found.part),
                  std::tie(task.kind, task.tile, task.part))
            << i;
        ++n;
    }
    ASSERT_FALSE(reader.seek(n));
}

// The readers of rising i give what decode gives.
void expect_readers_decode(const Pass& pass) {
    for (const Role role : {Role::Compute, Role::Comm}) {
        const int64_t tasks = count(pass, role);
        for (const int64_t stride : {1, 7, 132}) {
            ComputeReader compute(pass);
            CommReader comm(pass);
            const bool computes = role == Role::Compute;
            for (int64_t i = stride / 2; i < tasks; i += stride) {
                ASSERT_TRUE(computes ? compute.seek(i) : comm.seek(i)) << i;
                const Task task = computes ? compute.task() : comm.task();
                ASSERT_EQ(work_of(pass, task), work_of(pass, decode(pass, role, i))) << i;
                ASSERT_EQ(task.tile, decode(pass, role, i).tile) << i;
                if (is_wgrad(task.kind)) continue;
                const bool shared = is_shared_tile(pass, task.tile);
                if (computes) ASSERT_EQ(compute.is_shared(), shared) << i;
                if (!shared) {
                    ASSERT_EQ(computes ? compute.macro() : comm.macro(),
                              macrobatch_of_tile(pass.problem, task.tile))
                        << i;
                }
            }
            ASSERT_FALSE(computes ? compute.seek(tasks) : comm.seek(tasks));
            ASSERT_FALSE(computes ? compute.seek(tasks + 1000) : comm.seek(tasks + 1000));
        }
    }
}

TEST(Program, ReadersOfRisingIndicesGiveTheSameTasks) {
    for (const int32_t ranks : {1, 3}) {
        for_each_routing(ranks, 700, 500 + ranks,
                         [](const Problem& p, const Batch&, const OwnedTable& owned) {
                             for_each_pass(p, owned.table, expect_readers_decode);
                             for_each_pass(p, owned.table, expect_reader_dispatches);
                         });
        if (HasFailure()) return;
    }
}

TEST(Program, EveryTaskOfEveryPassOnceForEveryNumberOfRanks) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for (const int32_t tokens : {60, 700}) {
            for_each_routing(ranks, tokens, 200 + ranks,
                             [](const Problem& p, const Batch&, const OwnedTable& owned) {
                                 for_each_pass(p, owned.table, expect_every_task_once);
                             });
            if (HasFailure()) return;
        }
    }
}

TEST(Program, TasksStandInTheOrderOfTheHeader) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
        for_each_routing(1 + seed % 7, 900, 400 + seed,
                         [](const Problem& p, const Batch&, const OwnedTable& owned) {
                             for_each_pass(p, owned.table, expect_order);
                         });
        if (HasFailure()) return;
    }
}

TEST(Program, EveryTaskOnceForManyExperts) {
    for_many_experts([](const Problem& p, const Batch&, const OwnedTable& owned) {
        for_each_pass(p, owned.table, expect_every_task_once);
        for_each_pass(p, owned.table, expect_order);
    });
}

}  // namespace
}  // namespace mok::plan
