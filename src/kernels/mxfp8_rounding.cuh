#pragma once

#include <cuda_bf16.h>

#include "arch/copy.cuh"
#include "kernels/layout.cuh"
#include "kernels/swizzle.h"
#include "math/mxfp8_rounding.h"

// BF16 in shared memory, swizzled rows of 64 columns (128 bytes), to what Mxfp8 keeps of it, in
// place: blocks of 32 along a row or down a column.
namespace mok::kernels {

struct AddPairs {
    __device__ uint32_t operator()(uint32_t a, uint32_t b) const {
        const __nv_bfloat162 sum = __hadd2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                              *reinterpret_cast<const __nv_bfloat162*>(&b));
        return *reinterpret_cast<const uint32_t*>(&sum);
    }
};

// Sizes of the larger of two pairs, half by half.
__device__ inline uint32_t max_sizes(uint32_t sizes, uint32_t pair) {
    return max_halves(sizes, pair & 0x7fff7fffu);
}
__device__ inline Amax larger_half(uint32_t sizes) {
    return {static_cast<uint16_t>(max(sizes & 0xffffu, sizes >> 16))};
}

__device__ inline uint32_t exactly(uint32_t pair, Ue8m0 low, Ue8m0 high) {
    const Bf16 a{static_cast<uint16_t>(pair)}, b{static_cast<uint16_t>(pair >> 16)};
    return mxfp8_exactly(a, low).bits | uint32_t{mxfp8_exactly(b, high).bits} << 16;
}

// ---- Along rows -------------------------------------------------------------------------------

// kChunks chunks of one row from `chunk` on, in registers.
template <int kChunks>
struct RowPart {
    uint32_t pair[4 * kChunks];

    __device__ RowPart(uint32_t block, int row, int chunk) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int4 v = arch::load_shared_chunk(block + chunk_offset(row, chunk + i));
            pair[4 * i] = v.x;
            pair[4 * i + 1] = v.y;
            pair[4 * i + 2] = v.z;
            pair[4 * i + 3] = v.w;
        }
    }
    __device__ Amax amax() const {
        uint32_t sizes = 0;
#pragma unroll
        for (const uint32_t p : pair) sizes = max_sizes(sizes, p);
        return larger_half(sizes);
    }
    __device__ void store(uint32_t block, int row, int chunk) const {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            arch::store_shared_chunk(
                block + chunk_offset(row, chunk + i),
                int4{static_cast<int>(pair[4 * i]), static_cast<int>(pair[4 * i + 1]),
                     static_cast<int>(pair[4 * i + 2]), static_cast<int>(pair[4 * i + 3])});
        }
    }
};

// A part of a row that belongs to one block, in place. What is not plain is so rare that it may
// take long, in few instructions.
template <int kChunks>
__device__ inline void round_in_place(RowPart<kChunks>& part, Amax amax, uint32_t block, int row,
                                      int chunk) {
    if (is_plain(amax)) {
        const uint32_t floors = mxfp8_floors(amax.bits * 0x00010001u);
#pragma unroll
        for (uint32_t& p : part.pair) p = round_to_mxfp8(p, floors, AddPairs{});
        part.store(block, row, chunk);
        return;
    }
    const Ue8m0 scale = Mxfp8::scale_of(amax);
#pragma unroll 1
    for (int i = 0; i < 4 * kChunks; ++i) {
        const uint32_t at = block + chunk_offset(row, chunk + i / 4) + i % 4 * 4;
        arch::store_shared_word(at, exactly(arch::load_shared_word(at), scale, scale));
    }
}

// A block of 64 rows x 64 columns, by the 128 threads of a consumer: a block of a row each.
__device__ inline void round_rows(uint32_t block) {
    const int thread = threadIdx.x % 128, row = thread % 64, chunk = thread / 64 * 4;
    RowPart<4> part(block, row, chunk);
    round_in_place(part, part.amax(), block, row, chunk);
}

// ---- Down columns -----------------------------------------------------------------------------
// Two neighbouring columns of kRows rows from `row` on, at the byte `offset` of a row of 128;
// `flip`: which of eight rows comes first.
template <int kRows>
struct ColumnPart {
    uint32_t pair[kRows];

    __device__ static uint32_t place(uint32_t block, int row, int byte) {
        return block + chunk_offset(row, byte / 16) + byte % 16;
    }
    __device__ ColumnPart(uint32_t block, int row, int byte, int flip = 0) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            pair[i] = arch::load_shared_word(place(block, row + (i ^ flip), byte));
        }
    }
    // The amaxes of both columns, each in its half.
    __device__ uint32_t amaxes() const {
        uint32_t sizes = 0;
#pragma unroll
        for (const uint32_t p : pair) sizes = max_sizes(sizes, p);
        return sizes;
    }
    __device__ void store(uint32_t block, int row, int byte, int flip = 0) const {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            arch::store_shared_word(place(block, row + (i ^ flip), byte), pair[i]);
        }
    }
};

// The same of two columns that belong to two blocks.
template <int kRows>
__device__ inline void round_in_place(ColumnPart<kRows>& part, uint32_t amaxes, uint32_t block,
                                      int row, int byte, int flip = 0) {
    const Amax low{static_cast<uint16_t>(amaxes)}, high{static_cast<uint16_t>(amaxes >> 16)};
    if (is_plain(low) && is_plain(high)) {
        const uint32_t floors = mxfp8_floors(amaxes);
#pragma unroll
        for (uint32_t& p : part.pair) p = round_to_mxfp8(p, floors, AddPairs{});
        part.store(block, row, byte, flip);
        return;
    }
    const Ue8m0 of_low = Mxfp8::scale_of(low), of_high = Mxfp8::scale_of(high);
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
        const uint32_t at = ColumnPart<kRows>::place(block, row + i, byte);
        arch::store_shared_word(at, exactly(arch::load_shared_word(at), of_low, of_high));
    }
}

// Two blocks of 64 rows x 64 columns, one behind the other, down the columns, by the 128 threads of
// a consumer: a warp has 32 rows of a block, a thread two columns of them.
__device__ inline void round_two_blocks_of_columns(uint32_t blocks) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const uint32_t block = blocks + warp / 2 * 64 * 128;
    const int row = warp % 2 * 32, byte = 4 * lane;
    ColumnPart<32> part(block, row, byte);
    round_in_place(part, part.amaxes(), block, row, byte);
}

// One such block: a thread has two columns of 16 rows, and the thread 16 lanes on the other 16 of
// the block of 32. These begin with other rows, so that the lanes of a warp use all banks.
__device__ inline void round_block_of_columns(uint32_t block) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int row = warp / 2 * 32 + lane / 16 * 16, byte = warp % 2 * 64 + lane % 16 * 4;
    const int flip = lane / 16 * 4;
    ColumnPart<16> part(block, row, byte, flip);
    uint32_t amaxes = part.amaxes();
    amaxes = max_halves(amaxes, __shfl_xor_sync(~0u, amaxes, 16));
    round_in_place(part, amaxes, block, row, byte, flip);
}

}  // namespace mok::kernels
