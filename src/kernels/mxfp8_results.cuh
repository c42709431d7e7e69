#pragma once

#include "kernels/consumer.cuh"
#include "kernels/mxfp8_params.h"
#include "kernels/mxfp8_rounding.cuh"
#include "kernels/quantise_values.cuh"
#include "math/saved_fp8.h"

// Results of a consumer's 64 rows x 64 columns that leave in Mxfp8: hidden as BF16 numbers that it
// keeps, gate and up as elements and scales. put_block gives a lane eight columns of a row, and
// four neighbours have a block.
namespace mok::kernels {

struct ChunkPairs {
    uint32_t at[4];

    __device__ explicit ChunkPairs(int4 chunk)
        : at{static_cast<uint32_t>(chunk.x), static_cast<uint32_t>(chunk.y),
             static_cast<uint32_t>(chunk.z), static_cast<uint32_t>(chunk.w)} {}
    // Of the block, over the four lanes; all lanes of the warp call it.
    __device__ Amax amax() const {
        uint32_t sizes = 0;
#pragma unroll
        for (const uint32_t pair : at) sizes = max_sizes(sizes, pair);
        sizes = max_halves(sizes, __shfl_xor_sync(~0u, sizes, 1));
        sizes = max_halves(sizes, __shfl_xor_sync(~0u, sizes, 2));
        return larger_half(sizes);
    }
};

__device__ inline int4 rounded_to_mxfp8(int4 chunk) {
    ChunkPairs pairs(chunk);
    const Amax amax = pairs.amax();
    if (is_plain(amax)) {
        const uint32_t floors = mxfp8_floors(amax.bits * 0x00010001u);
#pragma unroll
        for (uint32_t& pair : pairs.at) pair = round_to_mxfp8(pair, floors, AddPairs{});
    } else {
        const Ue8m0 scale = Mxfp8::scale_of(amax);
#pragma unroll
        for (uint32_t& pair : pairs.at) pair = exactly(pair, scale, scale);
    }
    return {static_cast<int>(pairs.at[0]), static_cast<int>(pairs.at[1]),
            static_cast<int>(pairs.at[2]), static_cast<int>(pairs.at[3])};
}

// The rule of saved gate and up (math/saved_fp8.h) for a block of one scale: an element lies beyond
// the limit if it is above the largest one within.
class Sides {
  public:
    __device__ Sides(Saved which, float limit, const Mxfp8Multiplier& quotients)
        : limit_(limit), is_up_(which == Saved::Up) {
        const float quotient = quotients.quotient(limit);
        const E4m3 nearest = to_e4m3(quotient);
        within_ = (nearest.bits & 0x7fu) - (to_f32(nearest) > quotient ? 1u : 0u);
    }
    // By element and value of a pair, the low ones first.
    __device__ uint32_t kept(uint32_t elements, uint32_t pair) const {
        return kept_one(elements & 0xffu, __uint_as_float(pair << 16)) |
               kept_one(elements >> 8 & 0xffu, __uint_as_float(pair & 0xffff0000u)) << 8;
    }

  private:
    __device__ uint32_t kept_one(uint32_t element, float value) const {
        const uint32_t size = element & 0x7fu;
        const bool clamped = (is_up_ ? fabsf(value) : value) > limit_;
        const bool lands_clamped = size > within_ && (is_up_ || element == size);
        return element + (clamped && !lands_clamped && size < kE4m3NaN - 1u ? 1u : 0u) -
               (lands_clamped && !clamped ? 1u : 0u);
    }

    float limit_;
    uint32_t within_;
    bool is_up_;
};
// Of which the products with the scale are exact as BF16, and quotients as FP32: Sides and
// on_its_side agree.
__device__ inline bool is_in_the_middle(Ue8m0 scale) {
    return scale.bits >= 8 && scale.bits < 240;
}

__device__ inline uint32_t element_pair(uint32_t pair, const Mxfp8Multiplier& quotients) {
    return two_elements(quotients.quotient(__uint_as_float(pair << 16)),
                        quotients.quotient(__uint_as_float(pair & 0xffff0000u)));
}
__device__ inline uint32_t pair_on_its_side(Saved which, const Activation& activation,
                                            uint32_t elements, uint32_t pair, Ue8m0 scale) {
    uint32_t kept = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i += 8) {
        const Bf16 value{static_cast<uint16_t>(pair >> (2 * i))};
        const E4m3 element{static_cast<uint8_t>(elements >> i)};
        kept |= uint32_t{on_its_side<Mxfp8>(which, activation, value, element, scale).bits} << i;
    }
    return kept;
}

// Rows of gate or up, as a BF16 layer would save them, to Mxfp8.
struct SavedTarget {
    Saved which;
    const Activation& activation;
    const Mxfp8Rows& rows;
    int64_t padded;  // columns
};
template <bool kLimited>
__device__ inline void save_chunk(const SavedTarget& to, int64_t row, int32_t col, int4 chunk) {
    const ChunkPairs pairs(chunk);
    const Mxfp8Multiplier quotients(pairs.amax());
    uint32_t elements[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) elements[i] = element_pair(pairs.at[i], quotients);
    if constexpr (kLimited) {
        if (is_in_the_middle(quotients.scale())) {
            const Sides sides(to.which, to.activation.limit, quotients);
#pragma unroll
            for (int i = 0; i < 4; ++i) elements[i] = sides.kept(elements[i], pairs.at[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                elements[i] = pair_on_its_side(to.which, to.activation, elements[i], pairs.at[i],
                                               quotients.scale());
            }
        }
    }
    *reinterpret_cast<uint2*>(to.rows.elements + row * to.padded + col) = {
        elements[0] | elements[1] << 16, elements[2] | elements[3] << 16};
    if (col % Mxfp8::kBlock == 0) {
        to.rows.scales[scale_tile_index(row, col / Mxfp8::kBlock, to.padded / Mxfp8::kBlock)] =
            quotients.scale();
    }
}

// A consumer's block at (row, col), through its staging.
template <class Value>
__device__ __forceinline__ void save_block(uint8_t* staging, const SavedTarget& to, int64_t row,
                                           int32_t col, Value&& value) {
    const int32_t own_col = col + 8 * (threadIdx.x % 8);
    const bool limited = to.activation.limit != std::numeric_limits<float>::infinity();
    put_block(staging, value, [&](int i, int4 chunk) {
        if (limited) {
            save_chunk<true>(to, row + block_row(i), own_col, chunk);
        } else {
            save_chunk<false>(to, row + block_row(i), own_col, chunk);
        }
    });
}

// What the forward's consumer (consumer.cuh) makes of its results.
class Mxfp8Results {
  public:
    static constexpr bool kSavesBf16 = false;

    __device__ explicit Mxfp8Results(const Mxfp8ForwardParams& p)
        : p_(p), padded_(plan::fp8_padded(p.pass.problem.intermediate)) {}

    __device__ int4 hidden(int4 chunk) const { return rounded_to_mxfp8(chunk); }

    // A thread's eights of 64 columns from `col` on: eight(g, h) of row `row` + 8h.
    template <class Columns>
    __device__ __forceinline__ void save(Saved which, int64_t row, int32_t col,
                                         Columns&& eight) const {
        const Mxfp8Rows& rows = which == Saved::Gate ? p_.saved.gate : p_.saved.up;
        const SavedTarget to{which, p_.activation, rows, padded_};
        const bool limited = to.activation.limit != std::numeric_limits<float>::infinity();
#pragma unroll
        for (int g = 0; g < 2; ++g) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int32_t own_col = col + Eights::kCols * g + Eights::own_column();
                if (limited) {
                    save_chunk<true>(to, row + 8 * h, own_col, eight(g, h));
                } else {
                    save_chunk<false>(to, row + 8 * h, own_col, eight(g, h));
                }
            }
        }
    }

  private:
    const Mxfp8ForwardParams& p_;
    int64_t padded_;
};

}  // namespace mok::kernels
