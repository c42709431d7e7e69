#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/forward_params.h"
#include "openmok/grad_mode.h"

namespace mok::kernels {

// Tensor maps of one kind of expert (routed or shared), with boxes of 64 rows x 128 bytes, of the
// gradients a warp's 16 rows, and the 128-byte swizzle; backward_maps() makes them. A matrix is
// read K-innermost or K-outermost from the same boxes.

inline constexpr int kGradientBoxRows = 16;

// What a tile's rows hold. Of the routed experts rows are ring rows or context rows (slots), of the
// shared expert tokens. A [rows, cols] buffer has whole tiles of 128 rows, the shared expert's x
// and d_y excepted: these end at T.
struct RowMaps {
    CUtensorMap x, d_y;        // [rows, H]  dispatch -> Replay, DownDgrad, wgrads
    CUtensorMap gate, up;      // [rows, I]  Replay or the forward -> DownDgrad
    CUtensorMap w_hidden;      // [rows, I]  DownDgrad -> DownWgrad
    CUtensorMap d_gate, d_up;  // [rows, I]  DownDgrad -> GateUpDgrad, wgrads
};
struct BackwardMaps {
    RowMaps ring;                      // the shared expert's only ones
    RowMaps kept;                      // what plan::row_is_kept says lies in the context
    CUtensorMap out;                   // [ring rows or tokens, H]  GateUpDgrad ->
    CUtensorMap gate, up, down;        // [E_l, I, H], [E_l, I, H], [E_l, H, I] BF16
    CUtensorMap d_gate, d_up, d_down;  // the gradients of the same, of the type that is asked

    // Of a box of RowMaps::gate and up; the weights that Replay reads. (Mxfp8 has others.)
    static constexpr int32_t kSavedBoxBytes = 64 * 64 * 2;
    MOK_HD const CUtensorMap& replayed_gate() const { return gate; }
    MOK_HD const CUtensorMap& replayed_up() const { return up; }
};

// A gradient that the caller wants, [E_l, rows, cols] or, of a bias, [E_l, rows]. Strides in
// elements, of a matrix multiples of 16 bytes; data 16-byte aligned.
struct WeightGradient {
    bool wanted;
    bool is_bf16;  // else FP32
    void* data;
    int64_t expert_stride, row_stride;
};
// Those of one kind of expert; of the shared one without biases.
struct ExpertGradients {
    WeightGradient gate, up, down;
    WeightGradient gate_bias, up_bias, down_bias;
    GradMode mode;  // Chain: FP32 only
};

// The plain memory behind the maps, where the kernel reads or writes single rows.
struct RowPointers {
    Bf16* x;             // [rows, H]  dispatch writes
    Bf16* d_y;           // [rows, H]  dispatch writes; <d_y, down bias>
    float* row_weights;  // [rows]  dispatch writes w, 0 in padding
};

struct BackwardParams : PassParams {
    Activation activation;
    Biases biases;  // those of the forward

    const Bf16* peer_x[plan::kMaxRanks];              // [T_r, H] at every home rank
    const Bf16* peer_d_y[plan::kMaxRanks];            // [T_r, H] at every home rank
    const float* peer_topk_weights[plan::kMaxRanks];  // [T_r, K] at every home rank
    Bf16* peer_combine[plan::kMaxRanks];              // [T_r * K, H] at every home rank: d_x
    // [T_r * K, gate_up_parts + 1] at every home rank
    float* peer_router_partials[plan::kMaxRanks];

    RowPointers ring;  // by ring row
    RowPointers kept;  // by slot, where plan::row_is_kept; else unused

    // The shared expert's rows: T tokens, and s or all ones where there are no weights.
    const Bf16* shared_d_y;
    bool has_shared_weights;
    const float* shared_weights;    // [T]
    float* shared_router_partials;  // [T rounded up to 128, gate_up_parts + 1]

    ExpertGradients grads, shared_grads;
    float* wgrad_scratch;  // [plan::expert_gradient_elements]
};

}  // namespace mok::kernels
