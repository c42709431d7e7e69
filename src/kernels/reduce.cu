#include <cuda_bf16.h>

#include "kernels/forward.h"

namespace mok::kernels {
namespace {

struct alignas(16) Eight {
    __nv_bfloat162 v[4];
};

__device__ inline void add_scaled(float (&sum)[8], const Eight& row, float w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = __bfloat1622float2(row.v[i]);
        sum[2 * i] = fmaf(w, pair.x, sum[2 * i]);
        sum[2 * i + 1] = fmaf(w, pair.y, sum[2 * i + 1]);
    }
}

// One thread owns eight columns of one token and walks the choices in order; loads of up to kAhead
// choices are in flight together.
constexpr int kAhead = 4;
constexpr int kReduceThreads = 256;

__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ ReduceParams p) {
    const int32_t columns = p.hidden / 8;
    const int64_t total = int64_t{p.num_tokens} * columns;
    for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < total;
         i += int64_t{gridDim.x} * kReduceThreads) {
        const int64_t token = i / columns, column = i % columns;
        float sum[8] = {};
        if (p.has_shared) {
            const float s = p.has_shared_weights ? p.shared_weights[token] : 1.0f;
            add_scaled(sum, reinterpret_cast<const Eight*>(p.shared_out)[i], s);
        }
        for (int32_t c0 = 0; c0 < p.top_k; c0 += kAhead) {
            Eight rows[kAhead];
            float w[kAhead];
            bool taken[kAhead];
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                const int64_t route = token * p.top_k + c0 + k;
                taken[k] = c0 + k < p.top_k && p.ids[route] >= 0;
                if (!taken[k]) continue;
                rows[k] = reinterpret_cast<const Eight*>(p.combine)[route * columns + column];
                w[k] = p.topk_weights[route];
            }
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                if (taken[k]) add_scaled(sum, rows[k], w[k]);
            }
        }
        Eight out;
#pragma unroll
        for (int k = 0; k < 4; ++k) out.v[k] = __floats2bfloat162_rn(sum[2 * k], sum[2 * k + 1]);
        reinterpret_cast<Eight*>(p.out)[i] = out;
    }
}

}  // namespace

cudaError_t launch_reduce(const ReduceParams& p, cudaStream_t stream) {
    const int64_t threads = int64_t{p.num_tokens} * (p.hidden / 8);
    if (threads == 0) return cudaSuccess;
    const int64_t blocks = (threads + kReduceThreads - 1) / kReduceThreads;
    reduce_kernel<<<static_cast<unsigned>(blocks < 132 * 16 ? blocks : 132 * 16), kReduceThreads, 0,
                    stream>>>(p);
    return cudaGetLastError();
}

}  // namespace mok::kernels
