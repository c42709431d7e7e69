#pragma once

#include "kernels/backward_params.h"
#include "kernels/forward_params.h"
#include "math/ue8m0.h"

// What the passes of a layer in Mxfp8 read and write beside those of BF16. Hopper multiplies BF16
// numbers that equal element times scale: of x they are made where dispatch brings it, of hidden
// and of the other operands where they are stored or loaded, of weights once per quantize_weights.
// The shared expert is BF16 and not theirs: a problem says 0 of shared_intermediate.
namespace mok::kernels {

// Rows of Mxfp8 (plan::Fp8RowsMap) in memory that the device reaches: elements [rows, padded] E4M3
// and their scales, by row [rows][padded / 32] or in tiles of 128 x 4 (math/scale_tiles.h).
struct Mxfp8Rows {
    uint8_t* elements;
    Ue8m0* scales;
};
// Gate and up, [rows, I], scales in tiles.
struct Mxfp8GateUp {
    Mxfp8Rows gate, up;
};

// DispatchX pulls peer_x8 and writes BF16 numbers to ring_x; peer_x is not used.
struct Mxfp8ForwardParams : ForwardParams {
    Mxfp8Rows peer_x8[plan::kMaxRanks];  // [T_r, H] at every home rank, scales by row
    Mxfp8GateUp saved;                   // the context's, where it keeps rows
};

// Operands are rounded to what Mxfp8 keeps of them as they are loaded: rows of x, d_y, d_gate, d_up
// along the row, those of weight gradients along the slots.
struct Mxfp8BackwardParams : BackwardParams {
    Mxfp8GateUp ring_saved, kept_saved;  // Replay or the forward -> DownDgrad
};
// ring.gate, ring.up, kept.gate and kept.up are of E4M3 elements, boxes of 64 rows x 64 columns
// without a swizzle; gate, up and down hold what Mxfp8 keeps along their rows (gate, up: I, down:
// H).
struct Mxfp8BackwardMaps : BackwardMaps {
    CUtensorMap gate_along_h, up_along_h;  // [E_l, I, H]

    static constexpr int32_t kSavedBoxBytes = 64 * 64;
    MOK_HD const CUtensorMap& replayed_gate() const { return gate_along_h; }
    MOK_HD const CUtensorMap& replayed_up() const { return up_along_h; }
};

}  // namespace mok::kernels
