#pragma once

#include "kernels/layout.cuh"

// Shape of a CTA of the FP8 forward. Roles, stages and queue are those of the BF16 kernel.
//
// A block of k is 128 elements, 128 bytes a row: what a scale covers, what the swizzle spans and
// what BF16 has in 64. So a tile of 128 x 256 takes the same bytes a block as in BF16 in the same
// 1,024 cycles of products. FP32 sums of 64 x 256 are 128 registers of a thread. Beside them fits
// one partial sum of 64 x 128, 64 registers; both operands are read from shared memory.
namespace mok::kernels::fp8 {

inline constexpr int kTileK = 128;
static_assert(kABytes == plan::kTileRows * kTileK && kBBytes == plan::kOutCols * kTileK);
inline constexpr int kScaleBytes = plan::kTileRows * 4;  // of A's rows, a block of k
// Of a task: half of the stages that BF16 has for it, which is what the scheduler says.
__device__ inline int32_t k_blocks_of(const TileTask& e) {
    return plan::ceil_div(e.k_blocks, kTileK / kernels::kTileK);
}
// The exchange leaves the end of its buffer to the scales.
inline constexpr int kRowsBytes = kExchangeBytes - kStages * kScaleBytes;
static_assert(kRowsBytes % 128 == 0);

struct SharedMemory : ForwardSharedMemory {
    float weight_scale[kStages][2];  // of B's two blocks of 128 rows

    // Of A's rows, [128].
    __device__ float* row_scales(int stage) {
        return reinterpret_cast<float*>(exchange + kRowsBytes + stage * kScaleBytes);
    }
};
inline constexpr int kSharedBytes = sizeof(SharedMemory) + 1024;
static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");

}  // namespace mok::kernels::fp8
