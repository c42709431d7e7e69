#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/blackwell.cuh"
#include "kernels/block_scaled_elements.h"

// Shape of a CTA of the MXFP8 backward. Two stages hold what the loader brings of BF16 rows and, of
// FP32 sums, takes away, and two hold operands of 128 elements of k: rows of A, 128 bytes each,
// then of B, and their scales. Between them stand the makers, a warpgroup of which one thread
// issues the products.
namespace mok::kernels::block_scaled {

inline constexpr int kRowStages = 2;  // stages of BF16, smem.stage[0..]; the others: operands
static_assert(kRowStages + kOperandStages == kernels::kStages && kSlotsOfStage == kTileK);
inline constexpr int kOperandScaleBytes = kScaleTiles * kScaleTileBytes;
static_assert(kABytes == kBoxesOfA * kBoxBytes && kBBytes == kBoxesOfB * kBoxBytes);
static_assert(kScaleTileOuter == plan::kTileRows && kScaleTileInner * 32 == kOperandK);
inline constexpr int kSums = 1;  // accumulators
static_assert(kOperandScalesAt == kSums * kAccumulatorColumns);

inline constexpr int kBackwardMoverRegisters = 48;
inline constexpr int kMakerRegisters = 64;
inline constexpr int kBackwardConsumerRegisters = 200;
static_assert(128 * (kBackwardMoverRegisters + kMakerRegisters +
                     kConsumers * kBackwardConsumerRegisters) <=
                  65536,
              "the registers of a multiprocessor");

struct BackwardMemory : BackwardSharedMemory {
    alignas(128) uint8_t scales[kOperandStages][kOperandScaleBytes];
    BlackwellState blackwell;
    arch::Barrier operand_full[kOperandStages];   // the loader, and its bytes -> makers
    arch::Barrier operand_empty[kOperandStages];  // products -> loader

    __device__ uint8_t* operand(int i) { return stage[kRowStages + i]; }
};
inline constexpr int kBackwardBytes = sizeof(BackwardMemory) + 1024;
static_assert(kBackwardBytes <= 232448, "227 KB of shared memory a CTA");

__device__ inline void init_backward_barriers(BackwardMemory& smem) {
    for (int i = 0; i < kRowStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);  // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], kStageReaders);
    }
    for (int i = 0; i < kOperandStages; ++i) {
        arch::barrier_init(&smem.operand_full[i], 1);
        arch::barrier_init(&smem.operand_empty[i], 1);
    }
    for (int i = 0; i < kEntries; ++i) {
        arch::barrier_init(&smem.entry_full[i], 1);               // the scheduler
        arch::barrier_init(&smem.entry_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.entry_empty[i],
                           2 + kMakers + kConsumers * 128);  // loader, teller, makers, consumers
    }
    arch::barrier_init(&smem.batch_full, 1);
    arch::barrier_init(&smem.stages_given, 1);
    init_launch_control(smem.blackwell.launch);
    init_tensor_memory(smem.blackwell.tensor, 1);
    arch::barrier_init_fence();
}

}  // namespace mok::kernels::block_scaled
