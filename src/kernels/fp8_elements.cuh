#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/mxfp8_rounding.cuh"
#include "kernels/mxfp8_unpack.cuh"
#include "kernels/quantise_values.cuh"

// Shared memory of a backward in Fp8Block.
namespace mok::kernels {

struct Fp8BackwardSharedMemory : BackwardSharedMemory {
    // Of a stage: of a product with weights A's 128 rows, then B's two blocks; of a weight gradient
    // B's 256 columns; of saved gate and up gate's 128 rows, then up's.
    alignas(16) float stage_scales[kStages][plan::kWgradCols];

    // The scales of B's blocks of 128 rows.
    __device__ float* weight_scales(int stage) { return stage_scales[stage] + plan::kTileRows; }
    // Of a weight gradient, A's 128 columns; where the exchange's buffer ends, as in a forward.
    __device__ float* column_scales(int stage) {
        return reinterpret_cast<float*>(exchange + fp8::kRowsBytes + stage * fp8::kScaleBytes);
    }
};
// Nothing for alignment: the kernel asks for it.
inline constexpr int kFp8BackwardSharedBytes = sizeof(Fp8BackwardSharedMemory);
static_assert(kFp8BackwardSharedBytes <= 232448, "227 KB of shared memory a CTA");

// The two stages of a block of 128 along K in BF16; second is -1 where K ends with the first.
struct StagePair {
    int first, second;
    __device__ int at(int i) const { return i == 0 ? first : second; }
};

}  // namespace mok::kernels
