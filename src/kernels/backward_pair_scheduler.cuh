#pragma once

#include "kernels/backward_scheduler.cuh"
#include "kernels/pair.cuh"
#include "kernels/pair_wgrad.h"
#include "kernels/shuffle.cuh"

// The scheduler and teller roles of a backward by pairs of CTAs. A ticket stands for two
// neighbouring tasks. Where they have the same B, which is two row tiles of one expert and part or
// two tiles of a weight gradient one below the other, each CTA has one. So it is, where CTAs
// multiply for themselves, with two that are of one kind and size and do not wait for each other.
// Otherwise they take turns, and each CTA has a dry entry beside the other's task. Both CTAs go
// through the same steps. A cluster of one CTA has one task a ticket.
namespace mok::kernels {

// TaskTickets: Tickets or LaunchedPairTickets. kMultipliesAsOne: the CTAs of a pair make one
// product of the same B.
template <class TaskTickets>
class BackwardPairScheduler {
  public:
    __device__ BackwardPairScheduler(const BackwardParams& p, BackwardSharedMemory& smem,
                                     const arch::Cluster& cluster, const TaskTickets& tickets)
        : p_(p), smem_(smem), cluster_(cluster), tickets_(tickets) {
        at_.parity = 1;  // an empty queue: the first round of waits passes
    }

    // One warp.
    __device__ void run() {
        const bool paired = is_paired(cluster_);
        const int rank = cluster_.rank;
        const uint64_t start = arch::nanoseconds();
        if (lane() == 0) tickets_.begin();
        plan::ComputeReader reader(p_.pass);
        while (true) {
            uint32_t ticket = 0;
            if (lane() == 0) ticket = tickets_.next();
            ticket = __shfl_sync(~0u, ticket, 0);
            if (ticket == kNoTask) break;
            // Even lanes find the first task of the pair, odd ones the second, if there is one.
            const int64_t first = int64_t{ticket} * cluster_.size;
            const int64_t i = first + (paired ? lane() % 2 : 0);
            Found found{};
            const bool has = reader.seek(i);
            if (has) {
                found = {reader.task(), reader.is_shared(), reader.macro()};
                take_part_for_pairs(found, i);
            }
            const uint32_t those = __ballot_sync(~0u, has);
            if ((those & 1) == 0) break;
            const bool alone = !paired || (those & 2) == 0;
            const bool in_step = !alone && run_in_step(found);
            const bool same_b = in_step && have_same_b(found);
            const bool together = !paired || (TaskTickets::kMultipliesAsOne ? same_b : in_step);
            const int turns = together || alone ? 1 : 2;
#pragma unroll 1  // all there is once: the code shares its cache with the consumers'
            for (int turn = 0; turn < turns; ++turn) {
                const int mine = together ? rank : turn;
                const Found its = value_of_lane(found, mine);
                const bool works = mine == rank && wait_for(its.task, first + mine);
                BackwardEntry e = backward_entry(p_, its.shared, its.macro, its.task);
                e.shares_b = same_b;
                if (!works) make_dry(e);
                put(e);
            }
        }
        put(BackwardEntry{});  // no more
        if (lane() != 0) return;
        tickets_.end();
        add_times(p_, waited_ns_, start);
    }

  private:
    __device__ static int lane() {
        return threadIdx.x % 32;
    }

    // A task, whether it is the shared expert's, and a routed expert's macrobatch.
    struct Found {
        plan::Task task;
        bool shared;
        int32_t macro;
    };
    // Task i becomes what pairs work on in its place.
    __device__ void take_part_for_pairs(Found& f, int64_t i) const {
        if (f.task.kind != plan::TaskKind::DownWgrad) return;
        const int32_t rows = plan::ceil_div(p_.pass.problem.hidden, plan::kWgradRows);
        const int32_t cols =
            plan::ceil_div(plan::width_of(p_.pass.problem, f.shared), plan::kWgradCols);
        f.task.part = part_for_pairs(f.task.part, i - f.task.part, rows, cols);
    }
    // Of tasks that differ in even and odd lanes: whether neither waits for the other, and both
    // take as many stages. Of one kind, a task of the next macrobatch may wait for rows of the ring
    // that one of this macrobatch reads.
    __device__ bool run_in_step(const Found& f) const {
        const bool down = f.task.kind == plan::TaskKind::DownDgrad;
        const int32_t width = plan::width_of(p_.pass.problem, f.shared);
        return same_of_pair(static_cast<int32_t>(f.task.kind)) && same_of_pair(f.shared) &&
               same_of_pair(f.shared ? 0 : f.macro) &&
               same_of_pair(plan::is_wgrad(f.task.kind) ? f.task.piece : 0) &&
               same_of_pair(down ? gate_up_blocks(width, f.task.part) : 0);
    }
    // Of such tasks.
    __device__ bool have_same_b(const Found& f) const {
        const plan::Problem& p = p_.pass.problem;
        if (!plan::is_wgrad(f.task.kind)) {
            return same_of_pair(f.task.part) &&
                   same_of_pair(f.shared ? 0 : p_.pass.table.tile_expert[f.task.tile]);
        }
        const bool down = f.task.kind == plan::TaskKind::DownWgrad;
        const int32_t width = plan::width_of(p, f.shared);
        return same_of_pair(plan::wgrad_tile(f.task.kind, down ? p.hidden : width,
                                             down ? width : p.hidden, f.task.part)
                                .col);
    }

    // False: the wait has expired. The CTA still keeps step with the other one.
    __device__ bool wait_for(const plan::Task& task, int64_t i) {
        if (p_.disturbance.stall_seed != 0) {
            if (lane() == 0) stall(p_, plan::Role::Compute, static_cast<uint32_t>(i));
            __syncwarp();
        }
        // Signals only grow: what one task of a piece waited for holds for the next.
        if (plan::is_wgrad(task.kind) && task.kind == waited_.kind && task.piece == waited_.piece) {
            return true;
        }
        const uint64_t begin = arch::nanoseconds();
        const bool met = wait_by_warp(
            p_, task, [&](auto&& visit) { plan::for_each_backward_wait(p_.pass, task, visit); });
        waited_ns_ += arch::nanoseconds() - begin;
        if (met) waited_ = task;
        return met;
    }

    __device__ void put(const BackwardEntry& entry) {
        arch::barrier_wait(&smem_.entry_empty[at_.index], at_.parity);
        __syncwarp();  // before the arrival that lets the entry go on
        if (lane() == 0) {
            smem_.entries[at_.index] = entry;
            arch::barrier_arrive(&smem_.entry_full[at_.index]);
        }
        __syncwarp();
        at_.advance();
    }

    const BackwardParams& p_;
    BackwardSharedMemory& smem_;
    arch::Cluster cluster_;
    TaskTickets tickets_;
    arch::RingState<kEntries> at_;
    plan::Task waited_{plan::TaskKind::Replay, -1, -1, -1, -1};
    uint64_t waited_ns_ = 0;
};

// As run_teller; of a dry entry nobody is told.
__device__ inline void run_pair_teller(const BackwardParams& p, BackwardSharedMemory& smem) {
    arch::RingState<kEntries> at;
    while (true) {
        arch::barrier_wait(&smem.entry_full[at.index], at.parity);
        const BackwardEntry e = smem.entries[at.index];
        if (!e.more) return;
        arch::barrier_wait(&smem.entry_done[at.index], at.parity);
        if (!is_dry(e)) {
            const plan::Task task{e.kind, e.tile, e.part, -1, e.piece};
            plan::for_each_compute_arrival(task, [&](const plan::Arrival& a) { arrive(p, a); });
            if (p.traced) {
                trace_task(p, task, smem.times[at.index].begin, smem.times[at.index].multiplied);
            }
        }
        arch::barrier_arrive(&smem.entry_empty[at.index]);
        at.advance();
    }
}

}  // namespace mok::kernels
