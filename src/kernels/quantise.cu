#include "kernels/quantise.h"

#include <algorithm>

#include "kernels/quantise_values.cuh"

namespace mok::kernels {
namespace {

// ---- Rows: a thread for eight columns of a block ---------------------------------------------
template <class Recipe>
constexpr int kThreadsOfBlock = Recipe::kBlock / kAtOnce;

template <class Recipe>
__global__ void __launch_bounds__(kQuantiserThreads)
    quantise_rows(const __grid_constant__ QuantiseRows p) {
    constexpr int kThreadsPerBlock = kThreadsOfBlock<Recipe>;
    const int64_t padded = plan::fp8_padded(p.cols), blocks = padded / Recipe::kBlock;
    const int64_t total = p.rows * blocks;
    const int lane = threadIdx.x % kThreadsPerBlock;
    const int64_t step = int64_t{gridDim.x} * (kQuantiserThreads / kThreadsPerBlock);
    const int64_t first = int64_t{blockIdx.x} * (kQuantiserThreads / kThreadsPerBlock);
    // A warp's threads stay together for the shuffles.
    for (int64_t base = first; base < total; base += step) {
        const int64_t at = base + threadIdx.x / kThreadsPerBlock;
        const int64_t row = at / blocks, col = at % blocks * Recipe::kBlock + lane * kAtOnce;
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
        const typename QuotientsOf<Recipe>::Type quotients(Amax{static_cast<uint16_t>(size)});
        *reinterpret_cast<uint64_t*>(p.elements + row * padded + col) =
            elements_of(v, p.cols - col, quotients);
        if (lane == 0) static_cast<typename Recipe::Scale*>(p.scales)[at] = quotients.scale();
    }
}

// ---- Weights: a CTA a block of 128 x 128 ------------------------------------------------------
__global__ void __launch_bounds__(kQuantiserThreads)
    quantise_weights(const __grid_constant__ QuantiseWeights p) {
    constexpr int kRowsAtOnce = kQuantiserThreads / 16, kRounds = 128 / kRowsAtOnce;
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

template <class Recipe>
void launch_rows(const QuantiseRows& p, cudaStream_t stream) {
    constexpr int64_t kMost = 132 * 32;  // CTAs that fill the largest Hopper GPU
    constexpr int64_t kBlocks = kQuantiserThreads / kThreadsOfBlock<Recipe>;  // of a CTA
    const int64_t blocks = p.rows * (plan::fp8_padded(p.cols) / Recipe::kBlock);
    const int64_t ctas = std::min((blocks + kBlocks - 1) / kBlocks, kMost);
    quantise_rows<Recipe><<<static_cast<unsigned>(ctas), kQuantiserThreads, 0, stream>>>(p);
}

}  // namespace

cudaError_t launch_quantise_rows(const QuantiseRows& p, cudaStream_t stream) {
    if (p.rows == 0) return cudaSuccess;
    if (p.precision == Precision::Fp8Block) {
        launch_rows<Fp8Block>(p, stream);
    } else {
        launch_rows<Mxfp8>(p, stream);
    }
    return cudaGetLastError();
}

cudaError_t launch_quantise_weights(const QuantiseWeights& p, cudaStream_t stream) {
    if (p.count * p.rows * p.cols == 0) return cudaSuccess;
    if (p.precision == Precision::Mxfp8) return launch_quantise_mxfp8_weights(p, stream);
    const dim3 grid(blocks_of(p.cols), blocks_of(p.rows), static_cast<unsigned>(p.count));
    quantise_weights<<<grid, kQuantiserThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace mok::kernels
