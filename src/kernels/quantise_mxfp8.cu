#include "kernels/quantise_mxfp8.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "math/mxfp8_factor.h"

namespace mok::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 8;                     // neighbours along k that one thread has
constexpr int kThreadsPerRow = 128 / kAtOnce;  // of 128 along k, four blocks
constexpr int kThreadsPerBlock = 32 / kAtOnce;

struct alignas(16) Values {
    Bf16 at[kAtOnce];
};

// Four neighbouring threads have a block, sixteen the 128 of a row.
struct Quantised {
    uint64_t elements;
    uint32_t scales;  // of the row's four blocks
};
// Of the first `count` values; zeros behind them, in a block of NaN too. Whole warps call it.
__device__ Quantised quantised(const Values& v, int64_t count) {
    Amax amax;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) amax = max_with(amax, v.at[i]);
    uint32_t size = amax.bits;
#pragma unroll
    for (int other = 1; other < kThreadsPerBlock; other *= 2) {
        size = max(size, __shfl_xor_sync(~0u, size, other));
    }
    const Ue8m0 scale = Mxfp8::scale_of(Amax{static_cast<uint16_t>(size)});
    const float factor = mxfp8_factor(scale);
    Quantised q{0, with_scale(0, threadIdx.x % kThreadsPerRow / kThreadsPerBlock, scale)};
#pragma unroll
    for (int other = kThreadsPerBlock; other < kThreadsPerRow; other *= 2) {
        q.scales |= __shfl_xor_sync(~0u, q.scales, other);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
        const float2 scaled{to_f32(v.at[i]) * factor, to_f32(v.at[i + 1]) * factor};
        const uint64_t both = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
        q.elements |= both << (8 * i);
    }
    if (count < kAtOnce) q.elements &= count > 0 ? (uint64_t{1} << (8 * count)) - 1 : 0;
    return q;
}

__global__ void __launch_bounds__(kThreads)
    quantise_rows(const __grid_constant__ QuantiseMxfp8Rows p) {
    constexpr int kAtATime = kThreads / kThreadsPerRow;
    const int64_t blocks = (p.cols + 127) / 128, total = p.rows * blocks;
    const int lane = threadIdx.x % kThreadsPerRow;
    // A warp's threads stay together for the shuffles.
    for (int64_t base = int64_t{blockIdx.x} * kAtATime; base < total;
         base += int64_t{gridDim.x} * kAtATime) {
        const int64_t at = base + threadIdx.x / kThreadsPerRow;
        const int64_t row = at / blocks, col = at % blocks * 128 + lane * kAtOnce;
        Values v{};
        if (at < total && col < p.cols) {
            v = *reinterpret_cast<const Values*>(p.from + row * p.cols + col);
        }
        const Quantised q = quantised(v, p.cols - col);
        if (at >= total) continue;
        *reinterpret_cast<uint64_t*>(p.to.elements + row * blocks * 128 + col) = q.elements;
        if (lane == 0) p.to.scales[at] = q.scales;
    }
}

// ---- Weights: a CTA a block of 128 x 128 --------------------------------------------------------
__device__ Values load_values(const QuantiseWeights& p, int64_t matrix, int64_t row, int64_t col) {
    Values v{};
    if (row >= p.rows) return v;
    const int64_t at = matrix * p.matrix_stride + row * p.row_stride + col;
    const auto* bf16 = static_cast<const Bf16*>(p.from) + at;
    const auto* f32 = static_cast<const float*>(p.from) + at;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
        if (col + i < p.cols) v.at[i] = p.dtype == DType::BF16 ? bf16[i] : to_bf16(f32[i]);
    }
    return v;
}

// 8 of 128 along k of row `outer` of a matrix's orientation; rows behind its end have scales alone.
__device__ void put(const QuantiseWeights& p, const plan::Fp8MatrixMap& map, int64_t outer,
                    int64_t k, int64_t k_size, const Values& v) {
    const int64_t matrix = blockIdx.z;
    const Quantised q = quantised(v, k_size - k);
    if (outer < map.outer) {
        uint8_t* elements = p.to + map.elements + matrix * map.expert_elements;
        *reinterpret_cast<uint64_t*>(elements + outer * map.padded_k + k) = q.elements;
    }
    if (k % 128 == 0) {
        auto* scales = reinterpret_cast<uint32_t*>(p.to + map.scales + matrix * map.expert_scales);
        const int64_t tile = outer / 128 * (map.padded_k / 128) + k / 128;
        scales[tile * 128 + mxfp8_scale_place(static_cast<int32_t>(outer % 128))] = q.scales;
    }
}

__global__ void __launch_bounds__(kThreads)
    quantise_weights(const __grid_constant__ QuantiseWeights p) {
    constexpr int kRowsAtOnce = kThreads / kThreadsPerRow;
    constexpr int kPitch = 128 + kAtOnce;
    __shared__ alignas(16) Bf16 transposed[128 * kPitch];
    const int64_t row0 = int64_t{blockIdx.y} * 128, col0 = int64_t{blockIdx.x} * 128;
    const int c = threadIdx.x % kThreadsPerRow * kAtOnce;
    for (int r = threadIdx.x / kThreadsPerRow; r < 128; r += kRowsAtOnce) {
        const Values v = load_values(p, blockIdx.z, row0 + r, col0 + c);
        put(p, p.by_rows, row0 + r, col0 + c, p.cols, v);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) transposed[(c + i) * kPitch + r] = v.at[i];
    }
    __syncthreads();
    for (int r = threadIdx.x / kThreadsPerRow; r < 128; r += kRowsAtOnce) {
        const Values v = *reinterpret_cast<const Values*>(transposed + r * kPitch + c);
        put(p, p.by_columns, col0 + r, row0 + c, p.rows, v);
    }
}

unsigned blocks_of(int64_t n) {
    return static_cast<unsigned>((n + 127) / 128);
}

}  // namespace

cudaError_t launch_quantise_mxfp8_rows(const QuantiseMxfp8Rows& p, cudaStream_t stream) {
    if (p.rows == 0) return cudaSuccess;
    constexpr int64_t kMost = 160 * 32;  // CTAs that fill the largest Blackwell GPU
    constexpr int64_t kAtATime = kThreads / kThreadsPerRow;
    const int64_t ctas = (p.rows * ((p.cols + 127) / 128) + kAtATime - 1) / kAtATime;
    quantise_rows<<<static_cast<unsigned>(std::min(ctas, kMost)), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t launch_quantise_mxfp8_weights(const QuantiseWeights& p, cudaStream_t stream) {
    if (p.count * p.rows * p.cols == 0) return cudaSuccess;
    const dim3 grid(blocks_of(p.cols), blocks_of(p.rows), static_cast<unsigned>(p.count));
    quantise_weights<<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace mok::kernels
