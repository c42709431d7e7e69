#pragma once

#include <cuda.h>

#include "kernels/block_scaled_tiles.h"
#include "kernels/fp8_params.h"

namespace mok::kernels {

// Rows of Mxfp8 (plan::Fp8RowsMap) in memory that the device reaches: elements [rows, padded] E4M3,
// and of 128 columns of a row a word of four E8M0 scales, the first in its lowest byte, in one of
// two orders:
//     by row    [rows][padded / 128]
//     by tile   [tiles of 128 rows][padded / 128][128]: row r of a tile at scale_place_of_tile(r)
struct BlockScaledRows {
    uint8_t* elements;
    uint32_t* scales;
};
// What the routed part of a forward in Mxfp8 reads and writes beside ForwardParams. It reads x in
// FP8 alone. peer_x and ring_x are not used.
struct BlockScaledForwardParams : ForwardParams {
    using ScaleWord = uint32_t;
    MOK_HD static constexpr int32_t scale_place(int32_t row) { return scale_place_of_tile(row); }

    BlockScaledRows peer_x8[plan::kMaxRanks];  // [T_r, H] at every home rank, scales by row
    BlockScaledRows ring_x8;                   // [B, H]   dispatch writes, scales by tile
    uint32_t* hidden_scales;                   // of the ring's hidden [B, I], by tile
    uint32_t *gate_scales, *up_scales;         // of the context's gate and up [rows, I], by tile
};

// Tensor maps of the routed experts: elements in boxes of 128 columns, 128-byte swizzle, kLoadRows
// or kStoreRows; scales in tiles of 128 x 4, [tiles of rows * tiles of k] of an expert.
struct BlockScaledExpertMaps {
    CUtensorMap x;                   // [B, padded H]
    CUtensorMap gate, up;            // [E_l, I, padded H]
    CUtensorMap down;                // [E_l, H, padded I]
    CUtensorMap hidden_load;         // [B, padded I]
    CUtensorMap hidden_store;        // the same
    CUtensorMap gate_save, up_save;  // [rows, padded I] of the context
    CUtensorMap x_scales, hidden_scales, gate_scales, up_scales, down_scales;
};

}  // namespace mok::kernels
