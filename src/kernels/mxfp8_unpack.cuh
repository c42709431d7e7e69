#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "math/ue8m0.h"

// Mxfp8 to BF16 numbers, two at a time: dequantise() of math/ue8m0.h for elements that are not NaN
// under a scale that is not, and NaN under one that is.
namespace mok::kernels {

// 2^120 times a scale as BF16, twice, where that is one: scales of up to 2^7.
inline constexpr uint32_t kMostLifted = 127 + 7;
__device__ inline uint32_t lifted_scale_pair(Ue8m0 scale) {
    // Byte 0 stands for 2^-127, and 2^-7 is a normal number.
    return ((uint32_t{scale.bits} + 120u) << 7) * 0x00010001u;
}
// A scale as BF16, twice.
__device__ inline uint32_t scale_pair(Ue8m0 scale) {
    const uint32_t normal = uint32_t{scale.bits} << 7;
    const uint32_t bits = scale.bits == kUe8m0NaN ? 0x7fc0u : (scale.bits == 0 ? 0x0040u : normal);
    return bits * 0x00010001u;
}

__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    const __nv_bfloat162 product = __hmul2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                              *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const uint32_t*>(&product);
}

// Elements in the upper bytes of both halves, the lower bytes zero. Exponent and fraction of E4M3
// four bits further right are a BF16 that is 2^120 times as small, subnormals and all; 2^120 times
// it is exact, and the scale's product is rounded once, below BF16's normal range alone.
__device__ inline uint32_t small_pair(uint32_t elements) {
    return (elements & 0x80008000u) | (elements & 0x7f007f00u) >> 4;
}
__device__ inline uint32_t unpack_pair(uint32_t elements, uint32_t scales) {
    constexpr uint32_t kUp = (127u + 120u) << 7;  // 2^120
    return multiply_pairs(multiply_pairs(small_pair(elements), kUp * 0x00010001u), scales);
}

// Elements of the bytes 0, 1 and 2, 3 of a word.
__device__ inline uint32_t low_elements(uint32_t word) {
    return __byte_perm(word, 0, 0x1404);
}
__device__ inline uint32_t high_elements(uint32_t word) {
    return __byte_perm(word, 0, 0x3424);
}

// Eight elements of one block; kLifted: its scale can be.
template <bool kLifted>
__device__ inline int4 unpack_eight(uint2 elements, Ue8m0 scale) {
    const uint32_t pairs[4] = {low_elements(elements.x), high_elements(elements.x),
                               low_elements(elements.y), high_elements(elements.y)};
    const uint32_t factor = kLifted ? lifted_scale_pair(scale) : scale_pair(scale);
    uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[i] =
            kLifted ? multiply_pairs(small_pair(pairs[i]), factor) : unpack_pair(pairs[i], factor);
    }
    return {static_cast<int>(to[0]), static_cast<int>(to[1]), static_cast<int>(to[2]),
            static_cast<int>(to[3])};
}

}  // namespace mok::kernels
