#include <algorithm>
#include <climits>

#include "kernels/publish.h"
#include "math/bf16.h"

namespace mok::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 1024;  // of one item

__device__ inline Bf16 converted(Bf16 value, Bf16) {
    return value;
}
__device__ inline Bf16 converted(float value, Bf16) {
    return to_bf16(value);
}
__device__ inline float converted(float value, float) {
    return value;
}

// One thread moves up to eight neighbours of a row; at once where both addresses allow it.
template <class From, class To>
__device__ void publish(const PublishItem& item) {
    const int64_t chunks = (item.cols + 7) / 8, total = item.matrices * item.rows * chunks;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total;
         i += int64_t{gridDim.x} * kThreads) {
        const int64_t row = i / chunks, col = i % chunks * 8;
        const From* from = static_cast<const From*>(item.from) +
                           row / item.rows * item.matrix_stride +
                           row % item.rows * item.row_stride + col;
        To* to = static_cast<To*>(item.to) + row * item.cols + col;
        const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0 &&
                             reinterpret_cast<uintptr_t>(to) % 16 == 0;
        if (aligned && col + 8 <= item.cols) {
            alignas(16) From in[8];
            alignas(16) To out[8];
#pragma unroll
            for (int k = 0; k < int(sizeof(in) / 16); ++k) {
                reinterpret_cast<int4*>(in)[k] = reinterpret_cast<const int4*>(from)[k];
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) out[k] = converted(in[k], To{});
#pragma unroll
            for (int k = 0; k < int(sizeof(out) / 16); ++k) {
                reinterpret_cast<int4*>(to)[k] = reinterpret_cast<const int4*>(out)[k];
            }
            continue;
        }
        for (int k = 0; k < 8 && col + k < item.cols; ++k) to[k] = converted(from[k], To{});
    }
}

// Block row y works on item y.
__global__ void __launch_bounds__(kThreads)
    publish_kernel(const __grid_constant__ PublishParams params) {
    const PublishItem& item = params.items[blockIdx.y];
    if (item.from_dtype == DType::BF16) {
        publish<Bf16, Bf16>(item);
    } else if (item.to_dtype == DType::BF16) {
        publish<float, Bf16>(item);
    } else {
        publish<float, float>(item);
    }
}

__global__ void __launch_bounds__(kThreads)
    publish_ids_kernel(const __grid_constant__ PublishIds params) {
    const int64_t total = params.rows * params.top_k;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total;
         i += int64_t{gridDim.x} * kThreads) {
        const int64_t at =
            i / params.top_k * params.row_stride + i % params.top_k * params.choice_stride;
        int64_t id;
        if (params.dtype == DType::I32) {
            id = static_cast<const int32_t*>(params.from)[at];
        } else {
            id = static_cast<const int64_t*>(params.from)[at];
            if (id > INT_MAX) id = INT_MAX;
            if (id < INT_MIN) id = INT_MIN;
        }
        params.window[i] = params.own[i] = static_cast<int32_t>(id);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *params.num_tokens_at = params.num_tokens;
}

unsigned blocks_for(int64_t threads) {
    return static_cast<unsigned>(
        std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

}  // namespace

cudaError_t launch_publish(const PublishParams& params, cudaStream_t stream) {
    if (params.num_items == 0) return cudaSuccess;
    int64_t most = 1;
    for (int i = 0; i < params.num_items; ++i) {
        const PublishItem& item = params.items[i];
        most = std::max(most, item.matrices * item.rows * ((item.cols + 7) / 8));
    }
    publish_kernel<<<dim3(blocks_for(most), params.num_items), kThreads, 0, stream>>>(params);
    return cudaGetLastError();
}

cudaError_t launch_publish_ids(const PublishIds& params, cudaStream_t stream) {
    publish_ids_kernel<<<blocks_for(params.rows * params.top_k), kThreads, 0, stream>>>(params);
    return cudaGetLastError();
}

}  // namespace mok::kernels
