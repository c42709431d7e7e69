#include "kernels/quantise_values.cuh"

// Weights in MXFP8: both orientations from BF16, and BF16 numbers from either. A CTA has a block of
// 128 x 128, which is one tile of scales in each orientation.
namespace mok::kernels {
namespace {

constexpr int kSide = 128;
constexpr int kBlock = static_cast<int>(Mxfp8::kBlock), kBlocks = kSide / kBlock;
constexpr int kEights = kBlock / kAtOnce;  // of a block
constexpr int kRowsAtOnce = kQuantiserThreads / (kSide / kAtOnce);
constexpr int kRounds = kSide / kRowsAtOnce;

// A matrix of one orientation in memory.
struct Matrix {
    uint8_t* elements;  // [outer, padded_k]
    uint8_t* scales;    // tiles of 128 x 4
    int64_t outer, padded_k;

    __device__ uint8_t& scale(int64_t row, int64_t block) const {
        return scales[scale_tile_index(row, block, padded_k / kBlock)];
    }
};
__device__ Matrix matrix_at(uint8_t* base, const plan::Fp8MatrixMap& map, int64_t index) {
    return {base + map.elements + index * map.expert_elements,
            base + map.scales + index * map.expert_scales, map.outer, map.padded_k};
}

// Rows of zeros behind the matrix get scales too: byte 0, as all that a tile has of no row.
__global__ void __launch_bounds__(kQuantiserThreads)
    quantise_weights(const __grid_constant__ QuantiseWeights p) {
    __shared__ Bf16 block[kSide][kSide + 2];  // columns lie in different banks
    const int64_t row0 = int64_t{blockIdx.y} * kSide, col0 = int64_t{blockIdx.x} * kSide;
    const Matrix rows = matrix_at(p.to, p.by_rows, blockIdx.z);
    const Matrix columns = matrix_at(p.to, p.by_columns, blockIdx.z);
    const int r = threadIdx.x / (kSide / kAtOnce), c = threadIdx.x % (kSide / kAtOnce) * kAtOnce;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = r + i * kRowsAtOnce;
        const int64_t row = row0 + at, col = col0 + c;
        const Values v = load_values(p, blockIdx.z, row, col);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) block[at][c + k] = v.at[k];
        // Four neighbours have a block of 32 columns.
        uint32_t size = size_of(v);
        size = max(size, __shfl_xor_sync(~0u, size, 1));
        size = max(size, __shfl_xor_sync(~0u, size, 2));
        const Mxfp8Multiplier quotients(Amax{static_cast<uint16_t>(size)});
        if (c % kBlock == 0) rows.scale(row, col / kBlock) = quotients.scale().bits;
        if (row < p.rows) {
            *reinterpret_cast<uint64_t*>(rows.elements + row * rows.padded_k + col) =
                elements_of(v, p.cols - col, quotients);
        }
    }
    __syncthreads();
    for (int unit = threadIdx.x; unit < kSide * kBlocks; unit += kQuantiserThreads) {
        const int at = unit % kSide, first = unit / kSide * kBlock;
        const int64_t col = col0 + at, row = row0 + first;
        Values v[kEights];
        uint32_t size = 0;
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            v[i / kAtOnce].at[i % kAtOnce] = block[first + i][at];
        }
#pragma unroll
        for (const Values& eight : v) size = max(size, size_of(eight));
        const Mxfp8Multiplier quotients(Amax{static_cast<uint16_t>(size)});
        columns.scale(col, row / kBlock) = quotients.scale().bits;
        if (col >= p.cols) continue;
        auto* to = reinterpret_cast<uint64_t*>(columns.elements + col * columns.padded_k + row);
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
            to[i] = elements_of(v[i], p.rows - row - i * kAtOnce, quotients);
        }
    }
}

__global__ void __launch_bounds__(kQuantiserThreads)
    dequantise_weights(const __grid_constant__ DequantiseWeights p) {
    __shared__ Bf16 block[kSide][kSide + 2];  // [outer][k] of the orientation
    const Matrix from = matrix_at(const_cast<uint8_t*>(p.from), p.map, blockIdx.z);
    const int64_t row0 = int64_t{blockIdx.y} * kSide, col0 = int64_t{blockIdx.x} * kSide;
    const int64_t outer0 = p.is_transposed ? col0 : row0, k0 = p.is_transposed ? row0 : col0;
    const int r = threadIdx.x / (kSide / kAtOnce), c = threadIdx.x % (kSide / kAtOnce) * kAtOnce;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = r + i * kRowsAtOnce;
        const int64_t outer = outer0 + at, k = k0 + c;
        if (outer >= from.outer) break;
        const uint64_t elements =
            *reinterpret_cast<const uint64_t*>(from.elements + outer * from.padded_k + k);
        const Ue8m0 scale{from.scale(outer, k / kBlock)};
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            block[at][c + j] = dequantise(E4m3{static_cast<uint8_t>(elements >> (8 * j))}, scale);
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const int at = r + i * kRowsAtOnce;
        const int64_t row = row0 + at, col = col0 + c;
        if (row >= p.rows || col >= p.cols) continue;
        Values v;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            v.at[j] = p.is_transposed ? block[c + j][at] : block[at][c + j];
        }
        *reinterpret_cast<Values*>(p.to + (blockIdx.z * p.rows + row) * p.cols + col) = v;
    }
}

dim3 grid_of(int64_t rows, int64_t cols, int64_t count) {
    const auto blocks = [](int64_t n) { return static_cast<unsigned>((n + kSide - 1) / kSide); };
    return {blocks(cols), blocks(rows), static_cast<unsigned>(count)};
}

}  // namespace

cudaError_t launch_quantise_mxfp8_weights(const QuantiseWeights& p, cudaStream_t stream) {
    quantise_weights<<<grid_of(p.rows, p.cols, p.count), kQuantiserThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t launch_dequantise_weights(const DequantiseWeights& p, cudaStream_t stream) {
    if (p.count * p.rows * p.cols == 0) return cudaSuccess;
    dequantise_weights<<<grid_of(p.rows, p.cols, p.count), kQuantiserThreads, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace mok::kernels
