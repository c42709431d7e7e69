#pragma once

#include <cuda_runtime_api.h>

#include "kernels/forward_params.h"
#include "openmok/tensor.h"

namespace mok::kernels {

// Launches the forward program of one rank on at most max_sms multiprocessors: steps 4..7 of a
// forward (docs/design.md), by the kernel of the current device's architecture;
// cudaErrorNoKernelImageForDevice where the build has none. signals, tickets and aborted must be
// zero.
cudaError_t launch_forward(const ForwardParams& params, const ExpertMaps& routed,
                           const ExpertMaps& shared, int max_sms, cudaStream_t stream);

// Step 9: out[t] = s * shared[t] + sum over choices 0..K-1 of w * y, FP32 in this order, one
// rounding.
struct ReduceParams {
    int32_t num_tokens, hidden, top_k;
    const int32_t* ids;         // [T, K], -1: left out
    const float* topk_weights;  // [T, K], rows weights_stride elements apart
    int64_t weights_stride;
    const Bf16* combine;  // [T * K, H]
    bool has_shared;
    const Bf16* shared_out;  // [T, H]
    bool has_shared_weights;
    const float* shared_weights;  // [T]
    void* out;                    // [T, H] BF16 or F32, rows out_stride elements apart
    DType out_dtype;
    int64_t out_stride;
};
cudaError_t launch_reduce(const ReduceParams& params, cudaStream_t stream);

}  // namespace mok::kernels
