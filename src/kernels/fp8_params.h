#pragma once

#include <cuda.h>

#include "kernels/forward_params.h"
#include "plan/memory_map.h"

namespace mok::kernels {

// Rows of Fp8Block (plan::Fp8RowsMap) in memory that the device reaches: elements [rows, padded]
// E4M3 and their scales, FP32, in one of two orders:
//     by row    [rows][padded / 128]
//     by tile   [tiles of 128 rows][padded / 128][128 rows]: a block's scales of a tile together
struct Fp8Rows {
    uint8_t* elements;
    float* scales;
};

// What the routed part of a forward in Fp8Block reads and writes beside ForwardParams. It reads x
// in FP8 alone. peer_x and ring_x are not used.
struct Fp8ForwardParams : ForwardParams {
    using ScaleWord = float;
    // Where the scale of a row of a tile lies among those of its block.
    MOK_HD static constexpr int32_t scale_place(int32_t row) { return row; }

    Fp8Rows peer_x8[plan::kMaxRanks];      // [T_r, H] at every home rank, scales by row
    Fp8Rows ring_x8;                       // [B, H]   dispatch writes, scales by tile
    uint8_t* hidden_elements;              // of the ring's hidden [B, padded I]
    float* hidden_scales;                  // and its scales, by tile
    uint8_t *gate_elements, *up_elements;  // of the context's gate and up [rows, padded I]
    float *gate_scales, *up_scales;        // and theirs, by tile
    // Of the weights, per expert [ceil(outer / 128)][padded k / 128].
    const float *gate_weight_scales, *up_weight_scales, *down_weight_scales;
};

// Tensor maps of the routed experts' elements: boxes of 128 columns and kLoadRows, 128-byte
// swizzle.
struct Fp8ExpertMaps {
    CUtensorMap x;            // [B, padded H]
    CUtensorMap gate, up;     // [E_l, I, padded H]
    CUtensorMap down;         // [E_l, H, padded I]
    CUtensorMap hidden_load;  // [B, padded I]
};
// Rows of a box of elements that are stored.
inline constexpr int kStoreRows = 8;

}  // namespace mok::kernels
