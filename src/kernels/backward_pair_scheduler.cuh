#pragma once

#include "kernels/backward_pair_layout.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/pair_wgrad.h"
#include "kernels/shuffle.cuh"

// The scheduler and teller roles of a backward by pairs of CTAs. A ticket stands for two
// neighbouring tasks. Where they have the same B, which is two row tiles of one expert and part or
// two tiles of a weight gradient one below the other, each CTA has one and both multiply as one;
// otherwise they take turns, and each CTA has a dry entry beside the other's task. Both CTAs go
// through the same steps.
namespace mok::kernels {

class BackwardPairScheduler {
  public:
    __device__ BackwardPairScheduler(const BackwardParams& p, BackwardPairMemory& smem,
                                     const arch::Cluster& cluster)
        : p_(p),
          smem_(smem),
          rank_(static_cast<int>(cluster.rank)),
          tickets_(p, smem, smem.blackwell.launch, cluster) {
        at_.parity = 1;  // an empty queue: the first round of waits passes
    }

    // One warp.
    __device__ void run() {
        const uint64_t start = arch::nanoseconds();
        plan::ComputeReader reader(p_.pass);
        while (true) {
            uint32_t ticket = 0;
            if (lane() == 0) ticket = tickets_.next();
            ticket = __shfl_sync(~0u, ticket, 0);
            if (ticket == kNoTask) break;
            // Even lanes find the first task of the pair, odd ones the second, if there is one.
            const int64_t i = int64_t{ticket} * kPair + lane() % 2;
            plan::Task task{plan::TaskKind::Replay, -1, -1, -1, -1};
            BackwardEntry found{};
            const bool has = reader.seek(i);
            if (has) {
                task = in_pairs(reader.task(), i, reader.is_shared());
                found = backward_entry(p_, reader, task);
            }
            const uint32_t those = __ballot_sync(~0u, has);
            if ((those & 1) == 0) break;
            const bool alone = (those & 2) == 0;
            const bool together = !alone && have_same_b(found, task, reader.macro());
            const int turns = together || alone ? 1 : 2;
#pragma unroll 1
            for (int turn = 0; turn < turns; ++turn) {
                const int mine = together ? rank_ : turn;
                BackwardEntry e = value_of_lane(found, mine);
                const plan::Task its = value_of_lane(task, mine);
                if (mine != rank_ || !wait_for(its, i - lane() % 2 + mine)) make_dry(e);
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

    // The task that pairs work on in the place of task i.
    __device__ plan::Task in_pairs(plan::Task task, int64_t i, bool shared) const {
        if (task.kind == plan::TaskKind::DownWgrad) {
            const plan::Problem& p = p_.pass.problem;
            task.part =
                part_for_pairs(task.part, i - task.part, plan::ceil_div(p.hidden, plan::kWgradRows),
                               plan::ceil_div(plan::width_of(p, shared), plan::kWgradCols));
        }
        return task;
    }
    // Of tasks that differ in even and odd lanes; then neither waits for the other. Of one kind, a
    // task of the next macrobatch may wait for rows of the ring that one of this macrobatch reads.
    __device__ static bool have_same_b(const BackwardEntry& e, const plan::Task& task,
                                       int32_t macro) {
        const bool wgrad = plan::is_wgrad(e.kind);
        return same_of_pair(static_cast<int32_t>(e.kind)) && same_of_pair(e.shared) &&
               same_of_pair(e.shared ? 0 : macro) && same_of_pair(e.expert) &&
               same_of_pair(wgrad ? task.piece : 0) && same_of_pair(wgrad ? e.at.col : task.part);
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
    BackwardPairMemory& smem_;
    int rank_;
    LaunchedPairTickets tickets_;
    arch::RingState<kEntries> at_;
    plan::Task waited_{plan::TaskKind::Replay, -1, -1, -1, -1};
    uint64_t waited_ns_ = 0;
};

// As run_teller; of a dry entry nobody is told.
__device__ inline void run_pair_teller(const BackwardParams& p, BackwardPairMemory& smem) {
    for_each_entry_done(smem, [&](const BackwardEntry& e, const TaskTimes& times) {
        if (!is_dry(e)) {
            const plan::Task task{e.kind, e.tile, e.part, -1, e.piece};
            plan::for_each_compute_arrival(task, [&](const plan::Arrival& a) { arrive(p, a); });
            if (p.traced) {
                trace_task(p, task, times.begin, times.multiplied);
            }
        }
    });
}

}  // namespace mok::kernels
