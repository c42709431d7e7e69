#pragma once

#include <cuda_bf16.h>

#include <cstdint>

// Where a thread of a consumer holds its sums (wgmma.cuh), and eight neighbouring columns of a row
// as it stores them.
namespace mok::kernels {

// Two neighbouring columns of one row.
struct Pair {
    float low, high;
};

// Two neighbours rounded to BF16, the low one in the low half.
__device__ inline uint32_t packed(Pair p) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(p.low, p.high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// The row of a consumer's 64 in which this thread holds sum[4j + 2h] and the next, h < 2.
__device__ __forceinline__ int own_row(int h) {
    return 16 * (threadIdx.x % 128 / 32) + 8 * h + threadIdx.x % 32 / 4;
}

// The column, of those of a tile, of sum[4j + 2h + i].
struct PlainColumns {
    __device__ static int column(int j, int i) { return 8 * j + 2 * (threadIdx.x % 4) + i; }
};

// Where the second operand's rows come by fours (arch::make_tensor_map_by_fours, boxes of 128): so
// a thread holds eight neighbouring columns, 16 bytes of BF16, of every 32, and four threads all
// 32.
struct Eights {
    static constexpr int kCols = 32, kBytes = 2 * kCols;  // of a group, in BF16

    __device__ static int column(int j, int i) {
        return 128 * (j / 16) + kCols * (j % 4) + own_column() + 4 * i + j % 16 / 4;
    }
    // This thread's first column of every 32.
    __device__ static int own_column() { return 8 * (threadIdx.x % 4); }
    // How many groups this thread has eights of where `cols` columns follow its first one's.
    __device__ static int32_t groups_below(int32_t cols) { return (cols + kCols - 1) / kCols; }
    // The index of column kCols * group + own_column() + c of row half h.
    __host__ __device__ static constexpr int index(int group, int h, int c) {
        return 64 * (group / 4) + 4 * (group % 4 + 4 * (c % 4)) + 2 * h + c / 4;
    }
};

// Columns c < 8 of a row, value(c), rounded to BF16.
template <class Value>
__device__ __forceinline__ int4 packed_eight(Value&& value) {
    const auto two = [&](int c) { return static_cast<int>(packed({value(c), value(c + 1)})); };
    return {two(0), two(2), two(4), two(6)};
}

}  // namespace mok::kernels
