#pragma once

#include <cuda_fp8.h>

#include "kernels/consumer.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/fp8_params.h"
#include "math/fp8_divider.h"
#include "math/saved_fp8.h"

// Results of 64 rows x 128 columns of a consumer on their way out as rows of Fp8Block: a thread has
// 32 columns of two rows, four neighbours a whole row, which is one block.
namespace mok::kernels::fp8 {

// pair[16 h + j]: columns 8 j + 2 (t % 4) and the next of row half h, BF16, packed.
using Pairs = uint32_t[32];

// The rule of saved gate and up (math/saved_fp8.h); without limits, and for hidden, there is none.
struct NoSides {
    __device__ uint32_t operator()(uint32_t, uint32_t elements, float) const { return elements; }
};
struct OwnSides {
    Saved which;
    const Activation& activation;
    __device__ uint32_t operator()(uint32_t pair, uint32_t elements, float scale) const {
        uint32_t result = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Bf16 value{static_cast<uint16_t>(pair >> (16 * i))};
            const E4m3 element{static_cast<uint8_t>(elements >> (8 * i))};
            const E4m3 kept = on_its_side<Fp8Block>(which, activation, value, element, scale);
            result |= uint32_t{kept.bits} << (8 * i);
        }
        return result;
    }
};

// The largest |value| of a row, over the four threads that have it.
__device__ inline Amax row_amax(const Pairs& pair, int h) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) most = __vmaxu2(most, pair[16 * h + j] & 0x7fff7fffu);
    uint32_t size = max(most & 0xffffu, most >> 16);
    size = max(size, __shfl_xor_sync(~0u, size, 1));
    size = max(size, __shfl_xor_sync(~0u, size, 2));
    return {static_cast<uint16_t>(size)};
}

// Quantises the block of every warp's rows of half h to its part of the staging, swizzled as
// put_staged reads it, and their scales to scales[row], row of the consumer's 64. The warp
// calls it when nobody reads that part any more, and synchronises before anybody does.
template <class Sides>
__device__ inline void stage_rows(uint8_t* staging, int h, const Pairs& pair, float* scales,
                                  const Sides& sides) {
    const int thread = threadIdx.x % 128, lane = thread % 32, q = lane % 4;
    const int r = 16 * (thread / 32) + 8 * h + lane / 4;
    const Fp8Divider divider(row_amax(pair, h));
    if (q == 0) scales[r] = divider.scale();
    // 16-byte chunk c of row r lies at c ^ (r % 8).
    const uint32_t at = arch::shared_address(staging) + r * 128 + 2 * q;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        const uint32_t both = pair[16 * h + j];
        const float2 quotients{divider.quotient(__uint_as_float(both << 16)),
                               divider.quotient(__uint_as_float(both & 0xffff0000u))};
        const uint32_t elements = __nv_cvt_float2_to_fp8x2(quotients, __NV_SATFINITE, __NV_E4M3);
        arch::store_shared_half(at + ((j / 2 ^ (r & 7)) << 4) + j % 2 * 8,
                                sides(both, elements, divider.scale()));
    }
}

// Where a block of a consumer's 64 rows x 128 columns goes.
struct RowsTarget {
    uint8_t* elements;  // of its first row
    int64_t row_bytes;
    float* scales;  // of the tile's block, at the consumer's first row
};

// By every warp for its own 16 rows, through its part of the consumer's staging, in ordinary
// stores, which nobody waits for: eight lanes have 128 bytes of a row. Nobody else reads or writes
// that part meanwhile.
template <class Sides>
__device__ inline void store_rows(uint8_t* staging, const RowsTarget& to, const Pairs& pair,
                                  const Sides& sides) {
    const auto stage = [&] {
#pragma unroll
        for (int h = 0; h < 2; ++h) stage_rows(staging, h, pair, to.scales, sides);
    };
    put_staged(staging, stage, [&](int i, int4 chunk) {
        const int c = threadIdx.x % 8;
        arch::store_global_chunk(to.elements + block_row(i) * to.row_bytes + 16 * c, chunk);
    });
}

// ---- Columns by eights (eights.cuh) ------------------------------------------------------------
// EightPairs [16 h + 4 g + i]: columns 32 g + 8 (t % 4) + 2 i and the next of row half h, packed.
using EightPairs = Pairs;

// The rule of saved gate and up where a value may lie beside the limit, else nothing. nearest: the
// least distance of this thread's sums to the limit. E4M3 is off by at most 1/16 of the value or
// half of its least step, 2^-10, and BF16 by 2^-9: so zones are a bit wider than that.
struct SidesNear {
    OwnSides sides;
    float nearest;

    __device__ bool are_near(float scale) const {
        const float zone = fmaxf(0.08f * sides.activation.limit, 0x1p-9f * scale);
        return __any_sync(~0u, nearest <= zone);
    }
};
struct SidesNowhere {
    NoSides sides;
    __device__ bool are_near(float) const { return false; }
};

// Quantises and stores a row's block, of which this thread has 4 times 8 columns: from registers,
// 32 bytes of four threads in one piece.
template <Reads kReads, class Sides>
__device__ __forceinline__ void store_row(const RowsTarget& to, int h, const EightPairs& pair,
                                          const Fp8Divider& divider, const Sides& sides) {
    uint8_t* const at = to.elements + own_row(h) * to.row_bytes + Eights::own_column();
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        uint32_t words[2];
#pragma unroll
        for (int w = 0; w < 2; ++w) {
            uint32_t half[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t both = pair[16 * h + 4 * g + 2 * w + i];
                const float2 quotients{divider.quotient(__uint_as_float(both << 16)),
                                       divider.quotient(__uint_as_float(both & 0xffff0000u))};
                half[i] =
                    sides(both, __nv_cvt_float2_to_fp8x2(quotients, __NV_SATFINITE, __NV_E4M3),
                          divider.scale());
            }
            words[w] = half[0] | half[1] << 16;
        }
        if constexpr (kReads == Reads::Later) {
            arch::store_global_words_once(at + 32 * g, words[0], words[1]);
        } else {
            arch::store_global_words(at + 32 * g, words[0], words[1]);
        }
    }
}
template <Reads kReads, class Near>
__device__ __forceinline__ void store_eights(const RowsTarget& to, const EightPairs& pair,
                                             const Near& near) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const Fp8Divider divider(row_amax(pair, h));
        if (threadIdx.x % 4 == 0) to.scales[own_row(h)] = divider.scale();
        if (near.are_near(divider.scale())) {
            store_row<kReads>(to, h, pair, divider, near.sides);
        } else {
            store_row<kReads>(to, h, pair, divider, NoSides{});
        }
    }
}

}  // namespace mok::kernels::fp8
