#pragma once

#include "kernels/consumer.cuh"
#include "kernels/mxfp8_params.h"
#include "kernels/mxfp8_rounding.cuh"
#include "kernels/quantise_values.cuh"
#include "math/saved_fp8.h"

// Results of a consumer's 64 rows x 64 columns that leave in Mxfp8: hidden as BF16 numbers that it
// keeps, gate and up as elements and scales. A warp stages 8 of its 16 rows as BF16 (stage_half);
// then a lane has 16 columns of a row, and its neighbour the others of their block.
namespace mok::kernels {

struct StagedPart {
    int row;  // of the consumer's 64
    int chunk;
    __device__ explicit StagedPart(int h)
        : row(threadIdx.x % 128 / 32 * 16 + 8 * h + threadIdx.x % 32 / 4),
          chunk(threadIdx.x % 4 * 2) {}
};
__device__ inline Amax amax_of_both(const RowPart<2>& part) {
    const uint32_t size = part.amax().bits;
    return {static_cast<uint16_t>(max(size, __shfl_xor_sync(~0u, size, 1)))};
}

// Rows of h that every warp has staged. It synchronises before and behind.
__device__ inline void round_staged_half(uint8_t* staging, int h) {
    const StagedPart at(h);
    const uint32_t block = arch::shared_address(staging);
    RowPart<2> part(block, at.row, at.chunk);
    round_in_place(part, amax_of_both(part), block, at.row, at.chunk);
}

// The rule of saved gate and up.
template <bool kLimited>
__device__ inline uint32_t element_pair(Saved which, const Activation& activation, uint32_t pair,
                                        const Mxfp8Multiplier& quotients) {
    const uint32_t both = two_elements(quotients.quotient(__uint_as_float(pair << 16)),
                                       quotients.quotient(__uint_as_float(pair & 0xffff0000u)));
    if constexpr (!kLimited) return both;
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Bf16 value{static_cast<uint16_t>(pair >> (16 * i))};
        const E4m3 element{static_cast<uint8_t>(both >> (8 * i))};
        kept |= uint32_t{on_its_side<Mxfp8>(which, activation, value, element, quotients.scale())
                             .bits}
                << (8 * i);
    }
    return kept;
}

// Rows of h that every warp has staged to columns [col, col + 64) of `to`, whose row 0 of the
// consumer is `row`: a row's four lanes write 64 bytes. It synchronises before and behind.
template <bool kLimited>
__device__ inline void save_staged_half(const uint8_t* staging, int h, Saved which,
                                        const Activation& activation, const Mxfp8Rows& to,
                                        int64_t padded, int64_t row, int32_t col) {
    const StagedPart at(h);
    const RowPart<2> part(arch::shared_address(staging), at.row, at.chunk);
    const Mxfp8Multiplier quotients(amax_of_both(part));
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        words[i] = element_pair<kLimited>(which, activation, part.pair[2 * i], quotients) |
                   element_pair<kLimited>(which, activation, part.pair[2 * i + 1], quotients) << 16;
    }
    const int64_t r = row + at.row, c = col + 8 * at.chunk;
    *reinterpret_cast<uint4*>(to.elements + r * padded + c) = {words[0], words[1], words[2],
                                                               words[3]};
    if (threadIdx.x % 2 == 0) {
        to.scales[scale_tile_index(r, c / Mxfp8::kBlock, padded / Mxfp8::kBlock)] =
            quotients.scale();
    }
}

// What the forward's consumer (consumer.cuh) does with hidden, gate and up.
class Mxfp8Results {
  public:
    __device__ explicit Mxfp8Results(const Mxfp8ForwardParams& p)
        : p_(p), padded_(plan::fp8_padded(p.pass.problem.intermediate)) {}

    template <class Value>
    __device__ void store_hidden(uint8_t* staging, const BlockPlace& to, Value&& value) const {
        const int first_row = threadIdx.x % 128 / 32 * 16;
        const bool first = threadIdx.x % 32 == 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (first) arch::wait_stores_read<1>();
            __syncwarp();
            stage_half(staging, h, value);
            __syncwarp();
            round_staged_half(staging, h);
            arch::fence_shared_to_copies();
            __syncwarp();
            if (first) {
                const int r = first_row + 8 * h;
                arch::store_tile(to.map, to.col, to.row + r, 0, staging + r * 128);
                arch::commit_stores();
            }
        }
    }

    // The value is BF16 as a BF16 layer saves it.
    template <class Value>
    __device__ void store_saved(uint8_t* staging, Saved which, const BlockPlace& to,
                                Value&& value) const {
        const Mxfp8Rows& rows = which == Saved::Gate ? p_.saved.gate : p_.saved.up;
        const bool limited = p_.activation.limit != std::numeric_limits<float>::infinity();
        // hidden's tile store may still read.
        if (threadIdx.x % 32 == 0) arch::wait_stores_read<0>();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            __syncwarp();
            stage_half(staging, h, value);
            __syncwarp();
            if (limited) {
                save_staged_half<true>(staging, h, which, p_.activation, rows, padded_, to.row,
                                       to.col);
            } else {
                save_staged_half<false>(staging, h, which, p_.activation, rows, padded_, to.row,
                                        to.col);
            }
        }
        __syncwarp();
    }

  private:
    const Mxfp8ForwardParams& p_;
    int64_t padded_;
};

}  // namespace mok::kernels
