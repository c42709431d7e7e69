#pragma once

#include "kernels/block_scaled_params.h"
#include "kernels/consumer.cuh"
#include "kernels/quantise_values.cuh"
#include "math/saved_fp8.h"

// Results of 128 columns of a warp's 16 rows on their way out as rows of Mxfp8, a block of 32
// columns at a time, of which a thread has 8 in each of two rows and four neighbours have all.
namespace mok::kernels::block_scaled {

// The rule of saved gate and up (math/saved_fp8.h); without limits, and for hidden, there is none.
struct NoSides {
    __device__ NoSides() {}
    __device__ NoSides(Saved, const Activation&) {}
    __device__ uint32_t operator()(uint32_t, uint32_t elements, Ue8m0) const { return elements; }
};
struct OwnSides {
    Saved which;
    const Activation& activation;
    __device__ uint32_t operator()(uint32_t pair, uint32_t elements, Ue8m0 scale) const {
        uint32_t result = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Bf16 value{static_cast<uint16_t>(pair >> (16 * i))};
            const E4m3 element{static_cast<uint8_t>(elements >> (8 * i))};
            const E4m3 kept = on_its_side<Mxfp8>(which, activation, value, element, scale);
            result |= uint32_t{kept.bits} << (8 * i);
        }
        return result;
    }
};

// The largest |value| of four pairs of each of four neighbouring threads, which are a block.
__device__ inline Amax block_amax(const uint32_t (&pair)[4]) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) most = __vmaxu2(most, pair[j] & 0x7fff7fffu);
    uint32_t size = max(most & 0xffffu, most >> 16);
    size = max(size, __shfl_xor_sync(~0u, size, 1));
    size = max(size, __shfl_xor_sync(~0u, size, 2));
    return {static_cast<uint16_t>(size)};
}

// Quantises block b of 8 rows of a warp to its columns of rows in staging, swizzled as the store's
// tensor map has it; the scale is that of this thread's row. pair[j]: columns 8 j + 2 (t % 4) and
// the next of the block, BF16, packed.
template <class Sides>
__device__ inline Ue8m0 stage_block(uint8_t* rows, int b, const uint32_t (&pair)[4],
                                    const Sides& sides) {
    const int lane = threadIdx.x % 32, r = lane / 4;
    const Mxfp8Multiplier quotients(block_amax(pair));
    // 16-byte chunk c of row r lies at c ^ (r % 8); a block is two.
    const uint32_t at = arch::shared_address(rows) + r * 128 + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint32_t elements =
            two_elements(quotients.quotient(__uint_as_float(pair[j] << 16)),
                         quotients.quotient(__uint_as_float(pair[j] & 0xffff0000u)));
        arch::store_shared_half(at + (((2 * b + j / 2) ^ r) << 4) + j % 2 * 8,
                                sides(pair[j], elements, quotients.scale()));
    }
    return quotients.scale();
}

// Where 128 columns of a tile's rows go.
struct RowsTarget {
    const CUtensorMap* map;
    int32_t col, row;  // of the tile
    uint32_t* scales;  // of the tile's block of columns, [128]
};

// A warp's 16 rows, from `row` of the tile on, through its 16 rows of staging, which its last tile
// stores have read. pairs(b, pair) gives both row halves' columns of block b, as stage_block has
// them.
template <class PairsOf, class Sides>
__device__ inline void store_rows(uint8_t* staging, const RowsTarget& to, int32_t row,
                                  PairsOf&& pairs, const Sides& sides) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) arch::wait_stores_read<0>();
    __syncwarp();
    uint32_t word[2] = {0, 0};
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
        uint32_t pair[2][4];
        pairs(b, pair);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Ue8m0 scale = stage_block(staging + 8 * h * 128, b, pair[h], sides);
            word[h] |= static_cast<uint32_t>(scale.bits) << (8 * b);
        }
    }
    if (lane % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            to.scales[scale_place_of_tile(row + 8 * h + lane / 4)] = word[h];
    }
    arch::fence_shared_to_copies();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            arch::store_tile(to.map, to.col, to.row + row + 8 * h, 0, staging + 8 * h * 128);
        }
        arch::commit_stores();
    }
}

}  // namespace mok::kernels::block_scaled
