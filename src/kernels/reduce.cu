#include "kernels/eight.cuh"
#include "kernels/forward.h"

namespace mok::kernels {
namespace {

__device__ inline void add_scaled(float (&sum)[8], const Eight& row, float w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = __bfloat1622float2(row.v[i]);
        sum[2 * i] = fmaf(w, pair.x, sum[2 * i]);
        sum[2 * i + 1] = fmaf(w, pair.y, sum[2 * i + 1]);
    }
}

// Eight neighbours of a row, each rounded once; in one piece where their address allows it.
__device__ inline void store_eight(Bf16* to, const float (&sum)[8]) {
    Eight out;
#pragma unroll
    for (int k = 0; k < 4; ++k) out.v[k] = __floats2bfloat162_rn(sum[2 * k], sum[2 * k + 1]);
    if (reinterpret_cast<uintptr_t>(to) % sizeof(Eight) == 0) {
        *reinterpret_cast<Eight*>(to) = out;
        return;
    }
    const Bf16* values = reinterpret_cast<const Bf16*>(&out);
#pragma unroll
    for (int k = 0; k < 8; ++k) to[k] = values[k];
}
__device__ inline void store_eight(float* to, const float (&sum)[8]) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(float4) == 0) {
        reinterpret_cast<float4*>(to)[0] = {sum[0], sum[1], sum[2], sum[3]};
        reinterpret_cast<float4*>(to)[1] = {sum[4], sum[5], sum[6], sum[7]};
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) to[k] = sum[k];
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
                rows[k] = load_eight_once(p.combine, route * columns + column);
                w[k] = p.topk_weights[token * p.weights_stride + c0 + k];
            }
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                if (taken[k]) add_scaled(sum, rows[k], w[k]);
            }
        }
        const int64_t at = token * p.out_stride + 8 * column;
        if (p.out_dtype == DType::BF16) {
            store_eight(static_cast<Bf16*>(p.out) + at, sum);
        } else {
            store_eight(static_cast<float*>(p.out) + at, sum);
        }
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
