#include "kernels/backward.h"
#include "kernels/eight.cuh"

namespace mok::kernels {
namespace {

__device__ inline void add(float (&sum)[8], const Eight& row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = __bfloat1622float2(row.v[i]);
        sum[2 * i] += pair.x;
        sum[2 * i + 1] += pair.y;
    }
}

constexpr int kAhead = 4;  // choices whose loads are in flight together
constexpr int kReduceThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;

unsigned num_blocks(int64_t threads) {
    const int64_t blocks = (threads + kReduceThreads - 1) / kReduceThreads;
    return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// One thread owns eight columns of one token's d_x and walks the choices in order.
__global__ void __launch_bounds__(kReduceThreads)
    reduce_d_x_kernel(const __grid_constant__ ReduceGradsParams p) {
    const int32_t columns = p.hidden / 8;
    const int64_t total = int64_t{p.num_tokens} * columns;
    for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < total;
         i += int64_t{gridDim.x} * kReduceThreads) {
        const int64_t token = i / columns, column = i % columns;
        float sum[8] = {};
        if (p.has_shared) add(sum, reinterpret_cast<const Eight*>(p.shared_out)[i]);
        for (int32_t c0 = 0; c0 < p.top_k; c0 += kAhead) {
            Eight rows[kAhead];
            bool taken[kAhead];
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                const int64_t route = token * p.top_k + c0 + k;
                taken[k] = c0 + k < p.top_k && p.ids[route] >= 0;
                if (!taken[k]) continue;
                rows[k] = load_eight_once(p.combine, route * columns + column);
            }
#pragma unroll
            for (int k = 0; k < kAhead; ++k) {
                if (taken[k]) add(sum, rows[k]);
            }
        }
        const int64_t at = token * p.x_stride + 8 * column;
        if (p.x_is_bf16) {
            Eight out;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                out.v[k] = __floats2bfloat162_rn(sum[2 * k], sum[2 * k + 1]);
            }
            *reinterpret_cast<Eight*>(static_cast<__nv_bfloat16*>(p.x) + at) = out;
        } else {
            float4* out = reinterpret_cast<float4*>(static_cast<float*>(p.x) + at);
            out[0] = {sum[0], sum[1], sum[2], sum[3]};
            out[1] = {sum[4], sum[5], sum[6], sum[7]};
        }
    }
}

// Of row i, in their order.
__device__ inline float sum_of(const float* partials, int32_t num, int64_t i) {
    float sum = 0.0f;
    for (int32_t part = 0; part < num; ++part) sum += partials[i * num + part];
    return sum;
}

// One thread a route, then one a token.
__global__ void __launch_bounds__(kReduceThreads)
    reduce_router_kernel(const __grid_constant__ ReduceGradsParams p) {
    const int64_t routes = p.wants_topk_weights ? int64_t{p.num_tokens} * p.top_k : 0;
    const int64_t total = routes + (p.wants_shared_weights ? p.num_tokens : 0);
    for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < total;
         i += int64_t{gridDim.x} * kReduceThreads) {
        if (i < routes) {
            p.topk_weights[i / p.top_k * p.topk_stride + i % p.top_k] =
                p.ids[i] < 0 ? 0.0f : sum_of(p.router_partials, p.num_partials, i);
            continue;
        }
        const int64_t token = i - routes;
        p.shared_weights[token] = sum_of(p.shared_router_partials, p.shared_partials, token);
    }
}

}  // namespace

cudaError_t launch_reduce_grads(const ReduceGradsParams& p, cudaStream_t stream) {
    const int64_t tokens = p.num_tokens;
    if (tokens == 0) return cudaSuccess;
    if (p.wants_x) {
        reduce_d_x_kernel<<<num_blocks(tokens * (p.hidden / 8)), kReduceThreads, 0, stream>>>(p);
    }
    const int64_t sums =
        (p.wants_topk_weights ? tokens * p.top_k : 0) + (p.wants_shared_weights ? tokens : 0);
    if (sums > 0) reduce_router_kernel<<<num_blocks(sums), kReduceThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace mok::kernels
