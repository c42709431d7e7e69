#pragma once

#include "arch/copy.cuh"
#include "kernels/layout.cuh"
#include "kernels/next_task.cuh"

// Pairs: clusters of two CTAs that work on neighbouring tasks in step, so that a tile of weights
// that both need is read once, a half by each, for both. A cluster of one CTA works for itself.
//
// Steps are stages: both CTAs go through the same number of them for every pair of tasks, a dry one
// where a task is missing. A stage that a CTA's loader fills for the other one is free when the
// other's consumers have given it back (peer_empty). No CTA gets more than one round of the ring
// ahead of what the other's loader has seen: of shared weights half comes from the other one, and
// where nothing is shared the other's loader arrives at the stage instead.
//
// Tasks are told without a wait for the next one's stages: what the other CTA waits for may be the
// very task that is finished.
namespace mok::kernels {

inline constexpr uint32_t kPair = 2;

__device__ inline bool is_paired(const arch::Cluster& cluster) {
    return cluster.size == kPair;
}

// Of values that differ in even and odd lanes of a warp, which calls it: whether they are the same.
__device__ inline bool same_of_pair(int32_t value) {
    return __shfl_xor_sync(~0u, value, 1) == value;
}

// What a consumer gives its stages back to: the own loader, and the other CTA's.
class StageOwners {
  public:
    __device__ StageOwners(SharedMemory& smem, const arch::Cluster& cluster)
        : empty_(smem.empty),
          peer_(is_paired(cluster) ? arch::cluster_address(smem.peer_empty, cluster.rank ^ 1) : 0) {
    }
    // One thread of the consumer; its products are done with the stage.
    __device__ void give_back(int stage) const {
        arch::barrier_arrive(&empty_[stage]);
        if (peer_ != 0) arch::cluster_arrive(peer_ + stage * sizeof(arch::Barrier));
    }

  private:
    arch::Barrier* empty_;
    uint32_t peer_;
};

// Tickets on their way from a pair's first CTA to the second, which takes part in the same order.
// One thread of each CTA calls it.
class TicketMail {
  public:
    __device__ TicketMail(SharedMemory& smem, const arch::Cluster& cluster) : smem_(smem) {
        if (cluster.rank == 0) at_.parity = 1;  // all slots are free
    }
    // The first CTA.
    __device__ void send(uint32_t ticket) {
        arch::barrier_wait(&smem_.ticket_empty[at_.index], at_.parity);
        arch::cluster_store(arch::cluster_address(&smem_.ticket[at_.index], 1), ticket,
                            arch::cluster_address(&smem_.ticket_full[at_.index], 1));
        at_.advance();
    }
    // The second.
    __device__ uint32_t receive() {
        arch::Barrier* full = &smem_.ticket_full[at_.index];
        arch::barrier_arrive_expect(full, sizeof(uint32_t));
        arch::barrier_wait(full, at_.parity);
        const uint32_t ticket =
            arch::load_shared_word(arch::shared_address(&smem_.ticket[at_.index]));
        arch::cluster_arrive_after_reads(arch::cluster_address(&smem_.ticket_empty[at_.index], 0));
        at_.advance();
        return ticket;
    }

  private:
    SharedMemory& smem_;
    arch::RingState<kTickets> at_;
};

// The compute tickets of a pair: its first CTA claims them, one ahead, and sends them to the
// second. One thread of each CTA calls it.
class Tickets {
  public:
    // Two tasks that need different weights are worked on side by side.
    static constexpr bool kMultipliesAsOne = false;

    __device__ Tickets(const PassParams& p, SharedMemory& smem, const arch::Cluster& cluster)
        : p_(p), cluster_(cluster), mail_(smem, cluster) {}
    // Once, first.
    __device__ void begin() {
        if (cluster_.rank == 0) claim();
    }

    __device__ void end() const {}
    // The next ticket, which may lie beyond the program's end, or kNoTask: a wait of some CTA has
    // expired. Not to be called again after either.
    __device__ uint32_t next() {
        if (cluster_.rank != 0) return mail_.receive();
        const uint32_t ticket = aborted_ != 0 ? kNoTask : claimed_;
        if (is_paired(cluster_)) mail_.send(ticket);
        claim();
        return ticket;
    }

  private:
    __device__ void claim() {
        claimed_ = atomicAdd(&p_.tickets[static_cast<int>(plan::Role::Compute)], 1u);
        aborted_ = arch::signal_peek(p_.aborted);
    }

    const PassParams& p_;
    arch::Cluster cluster_;
    TicketMail mail_;
    uint32_t claimed_ = 0, aborted_ = 0;  // the next ticket, and whether it may be used
};

// By one thread of a CTA of a forward on Hopper, before the CTAs of its cluster meet. movers: that
// read the queue beside the consumers.
__device__ inline void init_forward_barriers(ForwardSharedMemory& smem,
                                             const arch::Cluster& cluster, int movers) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], cluster.size);  // loaders, and the bytes
        arch::barrier_init(&smem.empty[i], kConsumers);
        arch::barrier_init(&smem.peer_empty[i], kConsumers);
    }
    for (int i = 0; i < kTickets; ++i) {
        arch::barrier_init(&smem.ticket_full[i], 1);
        arch::barrier_init(&smem.ticket_empty[i], 1);
    }
    for (int i = 0; i < kQueue; ++i) {
        arch::barrier_init(&smem.task_full[i], 32);              // the scheduler's lanes
        arch::barrier_init(&smem.task_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.task_empty[i], movers + kConsumers * 128);
    }
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, cluster.size);  // exchanges
    arch::barrier_init_fence();
}

}  // namespace mok::kernels
