#pragma once

#include "kernels/pair.cuh"
#include "kernels/shuffle.cuh"
#include "plan/reader.h"

// The scheduler role: one warp of every CTA takes compute tasks in order, two at a time where CTAs
// work in pairs, waits until the inputs of its own are there and its outputs' rows are free, and
// hands it to the others, with the addresses of the rows that it pushes. Lane 0 claims.
namespace mok::kernels {

// The task that a reader is at.
__device__ inline TileTask tile_task(const ForwardParams& p, const plan::ComputeReader& at,
                                     const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const bool gate_up = task.kind == plan::TaskKind::GateUp;
    TileTask t{};
    t.kind = static_cast<int32_t>(task.kind);
    t.part = task.part;
    t.tile = task.tile;
    t.shared = at.is_shared();
    t.macro = at.macro();
    t.pushes = !gate_up && !t.shared;
    t.k_blocks =
        plan::ceil_div(gate_up ? problem.hidden : plan::width_of(problem, t.shared), kTileK);
    if (t.shared) {
        t.row = (task.tile - p.pass.first_shared_tile) * plan::kTileRows;
        t.rows = plan::min_of(plan::kTileRows, problem.num_tokens - t.row);
        t.saved_row = p.saves_context ? t.row : -1;
    } else {
        const int32_t slot = task.tile * plan::kTileRows;
        t.expert = p.pass.table.tile_expert[task.tile];
        t.row = slot - t.macro * problem.macrobatch_rows;
        t.rows = plan::tile_rows(problem, p.pass.table, task.tile);
        t.saved_row = p.saves_context && plan::in_context(problem, slot) ? slot : -1;
    }
    return t;
}

// TaskTickets: where its lane 0 has tickets from, Tickets, LaunchedTickets or LaunchedPairTickets.
// kMultipliesAsOne: the two CTAs of a pair make one product of shared weights, so tasks of
// different weights take turns, and of the turn that is the other CTA's each loads its half of the
// weights.
template <class TaskTickets>
class Scheduler {
  public:
    __device__ Scheduler(const ForwardParams& p, ForwardSharedMemory& smem,
                         const arch::Cluster& cluster, const TaskTickets& tickets)
        : p_(p), smem_(smem), cluster_(cluster), tickets_(tickets) {
        at_.parity = 1;  // an empty queue: the first round of waits passes
    }

    __device__ void run() {
        const bool paired = is_paired(cluster_);
        const int size = paired ? 2 : 1, rank = cluster_.rank;
        const uint64_t start = arch::nanoseconds();
        if (lane() == 0) tickets_.begin();
        plan::ComputeReader reader(p_.pass);
        while (true) {
            uint32_t ticket = 0;
            if (lane() == 0) ticket = tickets_.next();
            ticket = __shfl_sync(~0u, ticket, 0);
            if (ticket == kNoTask) break;
            // Even lanes find the first task of a pair, odd ones the second, if there is one.
            const int64_t first = int64_t{ticket} * size;
            plan::Task task{plan::TaskKind::GateUp, 0, 0, -1, -1};
            TileTask found{};
            const bool has = reader.seek(first + (paired ? lane() % 2 : 0));
            if (has) {
                task = reader.task();
                found = tile_task(p_, reader, task);
            }
            const uint32_t those = __ballot_sync(~0u, has);
            if ((those & 1) == 0) break;
            const bool alone = !paired || (those & 2) == 0;
            // In turns, each CTA has a dry step beside the other's task.
            bool together = !paired || (!alone && run_together(found));
            found.shares_b = paired && together && have_same_weights(found);
            if constexpr (TaskTickets::kMultipliesAsOne) {
                together = found.shares_b;
                found.shares_b = true;
            }
            const int turns = together || alone ? 1 : 2;
#pragma unroll 1  // all there is once: the code shares its cache with the consumers'
            for (int turn = 0; turn < turns; ++turn) {
                const int mine = together ? rank : turn;
                TileTask t = value_of_lane(found, mine);
                const HomeRows home = home_rows(t);  // on their way while it waits
                if (mine != rank || !wait_for(value_of_lane(task, mine), first + mine)) make_dry(t);
                put(t, home);
            }
        }
        TileTask end{};
        end.kind = -1;
        put(end, {});
        if (lane() != 0) return;
        tickets_.end();
        add_times(p_, waited_, start);
    }

  private:
    __device__ static int lane() {
        return threadIdx.x % 32;
    }

    // Of tasks that differ in even and odd lanes: whether neither waits for the other, and both
    // take as many stages. Of one kind, a task of the next macrobatch may wait for rows of the ring
    // that one of this macrobatch reads.
    __device__ bool run_together(const TileTask& t) const {
        return same_of_pair(t.kind) && same_of_pair(t.shared) && same_of_pair(t.macro);
    }
    // Of tasks that run together.
    __device__ static bool have_same_weights(const TileTask& t) {
        return same_of_pair(t.part) && same_of_pair(t.expert);
    }

    // False: the wait has expired. The CTA still keeps step with the other one.
    __device__ bool wait_for(const plan::Task& task, int64_t i) {
        if (p_.disturbance.stall_seed != 0) {
            if (lane() == 0) stall(p_, plan::Role::Compute, static_cast<uint32_t>(i));
            __syncwarp();
        }
        const uint64_t begin = arch::nanoseconds();
        const bool met = wait_by_warp(
            p_, task, [&](auto&& visit) { plan::for_each_forward_wait(p_.pass, task, visit); });
        waited_ += arch::nanoseconds() - begin;
        return met;
    }
    __device__ static void make_dry(TileTask& task) {
        task.rows = 0;
        task.saved_row = -1;
        task.is_dry = true;
        task.pushes = false;
    }

    // Where rows of y go at home, of this lane's slots of a tile; home -1: nowhere.
    static constexpr int kRows = plan::kTileRows / 32;
    struct HomeRows {
        int32_t home[kRows], route[kRows];
    };
    __device__ HomeRows home_rows(const TileTask& task) const {
        HomeRows rows{};
        if (!task.pushes) return rows;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int32_t slot = task.tile * plan::kTileRows + 32 * i + lane();
            rows.home[i] = p_.pass.table.slot_home[slot];
            rows.route[i] = p_.pass.table.slot_route[slot];
        }
        return rows;
    }
    __device__ uint64_t address_of(int32_t home, int32_t route) const {
        if (home < 0) return 0;
        return reinterpret_cast<uint64_t>(p_.peer_combine[home]) +
               route * (int64_t{p_.pass.problem.hidden} * 2);
    }

    // All readers see the entry whole: every lane arrives behind what it wrote.
    __device__ void put(const TileTask& task, const HomeRows& rows) {
        arch::barrier_wait(&smem_.task_empty[at_.index], at_.parity);
        __syncwarp();  // before the arrival that lets the entry go on
        QueueEntry& entry = smem_.queue[at_.index];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            entry.home_row[32 * i + lane()] =
                task.pushes ? address_of(rows.home[i], rows.route[i]) : 0;
        }
        if (lane() == 0) entry.task = task;
        arch::barrier_arrive(&smem_.task_full[at_.index]);
        at_.advance();
    }

    const ForwardParams& p_;
    ForwardSharedMemory& smem_;
    arch::Cluster cluster_;
    TaskTickets tickets_;
    arch::RingState<kQueue> at_;
    uint64_t waited_ = 0;
};

}  // namespace mok::kernels
