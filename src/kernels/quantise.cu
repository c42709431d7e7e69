#include "kernels/quantise.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "math/fp8_divider.h"

namespace mok::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 8;  // neighbours of a row that one thread has

struct alignas(16) Values {
    Bf16 at[kAtOnce];
};

__device__ uint32_t size_of(const Values& v) {
    Amax amax;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) amax = max_with(amax, v.at[i]);
    return amax.bits;
}

// Of the first `count` values; zeros behind them, in a block of NaN too.
__device__ uint64_t elements_of(const Values& v, int64_t count, const Fp8Divider& divider) {
    uint64_t elements = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
        const float2 quotients{divider.quotient(to_f32(v.at[i])),
                               divider.quotient(to_f32(v.at[i + 1]))};
        const uint64_t both = __nv_cvt_float2_to_fp8x2(quotients, __NV_SATFINITE, __NV_E4M3);
        elements |= both << (8 * i);
    }
    if (count >= kAtOnce) return elements;
    return count > 0 ? elements & ((uint64_t{1} << (8 * count)) - 1) : 0;
}

// ---- Rows: sixteen threads a block of 128 columns ------------------------------------------
constexpr int kThreadsPerBlock = 128 / kAtOnce;

__global__ void __launch_bounds__(kThreads) quantise_rows(const __grid_constant__ QuantiseRows p) {
    const int64_t blocks = (p.cols + 127) / 128, total = p.rows * blocks;
    const int lane = threadIdx.x % kThreadsPerBlock;
    const int64_t step = int64_t{gridDim.x} * (kThreads / kThreadsPerBlock);
    const int64_t first = int64_t{blockIdx.x} * (kThreads / kThreadsPerBlock);
    // A warp's threads stay together for the shuffles.
    for (int64_t base = first; base < total; base += step) {
        const int64_t at = base + threadIdx.x / kThreadsPerBlock;
        const int64_t row = at / blocks, col = at % blocks * 128 + lane * kAtOnce;
        Values v{};
        if (at < total && col < p.cols) {
            v = *reinterpret_cast<const Values*>(p.from + row * p.cols + col);
        }
        uint32_t size = size_of(v);
#pragma unroll
        for (int other = 1; other < kThreadsPerBlock; other *= 2) {
            size = max(size, __shfl_xor_sync(~0u, size, other));
        }
        if (at >= total) continue;
        const Fp8Divider divider(Amax{static_cast<uint16_t>(size)});
        *reinterpret_cast<uint64_t*>(p.to.elements + row * blocks * 128 + col) =
            elements_of(v, p.cols - col, divider);
        if (lane == 0) p.to.scales[at] = divider.scale();
    }
}

// ---- Weights: a CTA a block of 128 x 128 ------------------------------------------------------
__device__ Values load_values(const QuantiseWeights& p, int64_t matrix, int64_t row, int64_t col) {
    Values v{};
    if (row >= p.rows) return v;
    const int64_t at = matrix * p.matrix_stride + row * p.row_stride + col;
    const auto* bf16 = static_cast<const Bf16*>(p.from) + at;
    if (p.dtype == DType::BF16 && col + kAtOnce <= p.cols &&
        reinterpret_cast<uintptr_t>(bf16) % 16 == 0) {
        return *reinterpret_cast<const Values*>(bf16);
    }
    const auto* f32 = static_cast<const float*>(p.from) + at;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
        if (col + i < p.cols) v.at[i] = p.dtype == DType::BF16 ? bf16[i] : to_bf16(f32[i]);
    }
    return v;
}

__global__ void __launch_bounds__(kThreads)
    quantise_weights(const __grid_constant__ QuantiseWeights p) {
    constexpr int kRowsAtOnce = kThreads / 16, kRounds = 128 / kRowsAtOnce;
    constexpr int kPitch = 128 + 8;  // of the transposed block: 8-byte reads of neighbouring rows
    __shared__ uint8_t transposed[128 * kPitch];
    __shared__ uint32_t largest;
    const int64_t matrix = blockIdx.z, row0 = int64_t{blockIdx.y} * 128,
                  col0 = int64_t{blockIdx.x} * 128;
    const int r = threadIdx.x / 16, c = threadIdx.x % 16 * kAtOnce;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    Values v[kRounds];
    uint32_t size = 0;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        v[i] = load_values(p, matrix, row0 + r + i * kRowsAtOnce, col0 + c);
        size = max(size, size_of(v[i]));
    }
    atomicMax(&largest, size);  // a maximum: its order changes nothing
    __syncthreads();
    const Fp8Divider divider(Amax{static_cast<uint16_t>(largest)});
    uint8_t* rows = p.to + p.by_rows.elements + matrix * p.by_rows.expert_elements;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = r + i * kRowsAtOnce;
        const uint64_t elements =
            elements_of(v[i], row0 + at < p.rows ? p.cols - col0 - c : 0, divider);
        if (row0 + at < p.rows) {
            *reinterpret_cast<uint64_t*>(rows + (row0 + at) * p.by_rows.padded_k + col0 + c) =
                elements;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            transposed[(c + k) * kPitch + at] = static_cast<uint8_t>(elements >> (8 * k));
        }
    }
    __syncthreads();
    uint8_t* columns = p.to + p.by_columns.elements + matrix * p.by_columns.expert_elements;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = r + i * kRowsAtOnce;  // a column of the source
        if (col0 + at >= p.cols) break;
        *reinterpret_cast<uint64_t*>(columns + (col0 + at) * p.by_columns.padded_k + row0 + c) =
            *reinterpret_cast<const uint64_t*>(transposed + at * kPitch + c);
    }
    if (threadIdx.x != 0) return;
    const int64_t col_block = blockIdx.x, row_block = blockIdx.y;
    const auto put = [&](const plan::Fp8MatrixMap& map, int64_t outer, int64_t k) {
        auto* scales = reinterpret_cast<float*>(p.to + map.scales + matrix * map.expert_scales);
        scales[outer * (map.padded_k / 128) + k] = divider.scale();
    };
    put(p.by_rows, row_block, col_block);
    put(p.by_columns, col_block, row_block);
}

unsigned blocks_of(int64_t n) {
    return static_cast<unsigned>((n + 127) / 128);
}

}  // namespace

cudaError_t launch_quantise_rows(const QuantiseRows& p, cudaStream_t stream) {
    if (p.rows == 0) return cudaSuccess;
    constexpr int64_t kMost = 132 * 32;  // CTAs that fill the largest Hopper GPU
    const int64_t blocks = p.rows * ((p.cols + 127) / 128);
    const int64_t ctas = (blocks + kThreads / kThreadsPerBlock - 1) / (kThreads / kThreadsPerBlock);
    quantise_rows<<<static_cast<unsigned>(std::min(ctas, kMost)), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t launch_quantise_weights(const QuantiseWeights& p, cudaStream_t stream) {
    if (p.count * p.rows * p.cols == 0) return cudaSuccess;
    const dim3 grid(blocks_of(p.cols), blocks_of(p.rows), static_cast<unsigned>(p.count));
    quantise_weights<<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace mok::kernels
