#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/blackwell_pair.cuh"

// Shape of a CTA of a backward by pairs (blackwell_pair.cuh): products of 256 x 256. Two rings: of
// stages that products multiply, 128 rows of A and half of the 256 rows of B, handed over at the
// first CTA; and of stages that only this CTA's consumers use, in the format of the other kernels:
// gate and up of DownDgrad, FP32 sums on their way out, and where a bias gradient is summed the
// blocks of A once more.
namespace mok::kernels {

inline constexpr int kConsumerStages = 2;  // smem.stage[0..]; the others' place is the products'
inline constexpr int kProductStages = 3;
static_assert(kProductStages * kPairStageBytes <= (kStages - kConsumerStages) * kStageBytes);
static_assert(kStageBytes % 1024 == 0, "the swizzle's period");

// full and empty: of the consumers' stages, each CTA's own.
struct BackwardPairMemory : BackwardSharedMemory {
    BlackwellState blackwell;
    arch::Barrier
        pair_full[kProductStages];  // the first CTA's: both loaders and their bytes -> issuer
    arch::Barrier pair_empty[kProductStages];  // each CTA's: products -> its loader

    __device__ uint8_t* pair_stage(int i) { return stage[kConsumerStages] + i * kPairStageBytes; }
};
inline constexpr int kBackwardPairBytes = sizeof(BackwardPairMemory) + 1024;
static_assert(kBackwardPairBytes <= 232448, "227 KB of shared memory a CTA");

__device__ inline void init_backward_pair_barriers(BackwardPairMemory& smem) {
    for (int i = 0; i < kProductStages; ++i) {
        arch::barrier_init(&smem.pair_full[i], kPair);
        arch::barrier_init(&smem.pair_empty[i], 1);
    }
    for (int i = 0; i < kConsumerStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);  // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], kConsumers);
    }
    for (int i = 0; i < kTickets; ++i) {
        arch::barrier_init(&smem.ticket_full[i], 1);
        arch::barrier_init(&smem.ticket_empty[i], 1);
    }
    for (int i = 0; i < kEntries; ++i) {
        arch::barrier_init(&smem.entry_full[i], 1);               // the scheduler
        arch::barrier_init(&smem.entry_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.entry_empty[i],
                           3 + kConsumers * 128);  // loader, issuer, teller, consumers
    }
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, 1);
    init_launch_control(smem.blackwell.launch);
    init_tensor_memory(smem.blackwell.tensor, kPair);
    arch::barrier_init_fence();
}

// A dry entry is a step of the other CTA's task: this one loads its half of B and nothing else, and
// nobody reads what it multiplies. Its real rows are so many fewer.
inline constexpr int32_t kDryRows = 1 << 30;
__device__ inline void make_dry(BackwardEntry& e) {
    e.num_rows -= kDryRows;
}
__device__ inline bool is_dry(const BackwardEntry& e) {
    return e.num_rows < -kDryRows / 2;
}

}  // namespace mok::kernels
