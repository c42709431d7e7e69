#pragma once

#include "kernels/blackwell_pair.cuh"
#include "kernels/block_scaled_tiles.h"

// Shape of a CTA of the MXFP8 forward: the pairs of the BF16 kernel (blackwell_pair.cuh), blocks of
// k of 128 elements, which are as many bytes as BF16 has in 64, and the scales of each.
namespace mok::kernels::block_scaled {

inline constexpr int kTileK = 128;
inline constexpr int kStages = 5;
inline constexpr int kTileBytes = kScaleTileBytes;
inline constexpr int kScaleBytes = kScaleTiles * kTileBytes;
static_assert(kPairStageBytes == (plan::kTileRows + plan::kOutCols / 2) * kTileK);
static_assert(kStages <= kPairStages);
static_assert(kStages * (kPairStageBytes + kScaleBytes) <= kernels::kStages * kStageBytes);
static_assert(kScaleTileOuter == plan::kTileRows && kScaleTileInner * 32 == kTileK);

// Consumers read their sums a few at a time, so the others have more registers than in BF16.
inline constexpr int kMoverRegisters = 88;
inline constexpr int kConsumerRegisters = 176;
inline constexpr int kIssuerRegisters = 72;
static_assert(128 * (kMoverRegisters + kIssuerRegisters + kConsumers * kConsumerRegisters) <= 65536,
              "the registers of a multiprocessor");

// Stages of a task: half of those that BF16 has for it, which is what the scheduler says.
MOK_HD constexpr int32_t k_blocks_of(int32_t bf16_blocks) {
    return plan::ceil_div(bf16_blocks, kTileK / kernels::kTileK);
}

struct SharedMemory : PairMemory {
    arch::Barrier shared_empty;  // consumers' warps of both CTAs -> the first CTA's issuer

    __device__ uint8_t* scales(int i) {
        return bytes() + kStages * kPairStageBytes + i * kScaleBytes;
    }
};
inline constexpr int kSharedBytes = sizeof(SharedMemory) + 1024;
static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");

__device__ inline void init_barriers(SharedMemory& smem) {
    arch::barrier_init(&smem.shared_empty, kPair * kConsumerWarps);
    init_pair_barriers(smem, 2);  // loader, issuer
}

}  // namespace mok::kernels::block_scaled
