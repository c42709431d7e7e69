#pragma once

#include <cuda_runtime_api.h>

#include "kernels/backward_params.h"

namespace mok::kernels {

// Launches a backward program of one rank (Backward, BackwardInput or Wgrad) on at most max_sms
// multiprocessors: steps 4..7 of a backward (docs/design.md), by the kernel of the current device's
// architecture; cudaErrorNoKernelImageForDevice where the build has none. signals, tickets and
// aborted must be zero.
//
// The context of the forward: kept.gate and kept.up, by slot, of min(C, slots) rows; with
// Problem::keep_x kept.x too, its padding rows zero. BackwardInput also fills kept.w_hidden, d_gate
// and d_up (with keep_x d_y and row_weights) for a later Wgrad.
//
// Recompute is the forward kernel's: launch_forward with PassKind::Recompute and saves_context.
cudaError_t launch_backward(const BackwardParams& params, const BackwardMaps& routed,
                            const BackwardMaps& shared, int max_sms, cudaStream_t stream);

// Step 9: d_x[t] = shared d_x[t] + sum over choices 0..K-1 of d_x, FP32 in this order, one
// rounding; d_topk_weights[t, k] = the sum of the route's partial sums in their order, 0 where
// masked; d_shared_weights[t] = that of the token's.
struct ReduceGradsParams {
    int32_t num_tokens, hidden, top_k;
    const int32_t* ids;   // [T, K], -1: left out
    const Bf16* combine;  // [T * K, H]
    bool has_shared;
    const Bf16* shared_out;  // [T, H]

    bool wants_x, x_is_bf16;  // else FP32
    void* x;                  // [T, H], rows x_stride elements apart (a multiple of 8)
    int64_t x_stride;

    bool wants_topk_weights;
    int32_t num_partials;          // gate_up_parts + 1
    const float* router_partials;  // [T * K, num_partials] the window's
    float* topk_weights;           // [T, K], rows topk_stride apart
    int64_t topk_stride;

    bool wants_shared_weights;
    int32_t shared_partials;              // gate_up_parts + 1
    const float* shared_router_partials;  // [T, shared_partials]
    float* shared_weights;                // [T]
};
cudaError_t launch_reduce_grads(const ReduceGradsParams& params, cudaStream_t stream);

// ---- Making the maps ----------------------------------------------------------------------------
// Buffers of RowMaps in the order of its fields; rows 0: there are none, and the maps are those of
// `rows` 1 (never used).
struct RowBuffers {
    const Bf16 *x, *d_y, *gate, *up, *w_hidden, *d_gate, *d_up;
    int64_t rows;    // whole tiles
    int64_t x_rows;  // of x and d_y: rows, or T for the shared expert
};
// The expert's weights, [count, width, H] twice and [count, H, width], strides in elements.
struct WeightMatrix {
    const Bf16* data;
    int64_t expert_stride, row_stride;
};
struct ExpertBuffers {
    int64_t count, hidden, width;
    RowBuffers ring, kept;
    const Bf16* out;
    WeightMatrix gate, up, down;
    const ExpertGradients* grads;
};
// Throws std::runtime_error where the driver refuses a map.
BackwardMaps backward_maps(const ExpertBuffers& buffers);

}  // namespace mok::kernels
