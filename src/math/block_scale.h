#pragma once

#include <bit>
#include <cstdint>

#include "math/bf16.h"
#include "math/e4m3.h"
#include "math/host_device.h"
#include "math/scale_tiles.h"
#include "math/ue8m0.h"

namespace mok {

// Two recipes for E4M3 elements with a scale per block of consecutive elements along K. A block
// comes from BF16, and with amax the largest |x| of the block:
//
// Fp8Block   128 elements of an activation, 128 x 128 of a weight; FP32 scale
//                scale   = amax / 448,          one FP32 division
//                element = e4m3(x / scale),     one FP32 division, then to_e4m3
//            (cuBLAS documentation, "128-element 1D and 128x128 2D Block Scaling For FP8 Data
//            Types", says what blocks and scales mean in a product.)
// Mxfp8      32 elements, E8M0 scale
//                scale   = 2^k, k the smallest of -127.. with amax <= 448 * 2^k
//                element = e4m3(x * 2^-k)
//            (OCP MX Specification 1.0 with k rounded up, as in "1D Block Quantization" of cuBLAS's
//            documentation and ScaleCalculationMode.RCEIL of torchao. The specification's own
//            suggestion for k lets amax saturate. No BF16 needs k above 120.)
//
// Both: a block of zeros has scale 0 (Mxfp8: byte 0) and elements of zero with their signs. A block
// that holds an infinity or a NaN is NaN as a whole: a NaN scale (Mxfp8: byte 0xff) and elements
// 0x7f. A block that the matrix ends in is filled up with zeros. amax is a maximum of bits and
// divisions are IEEE's, so a block has the same bytes on every machine and in every order.
// Neither may be built with flush-to-zero or approximate division.

// The largest |x| so far, as a BF16's bits without the sign: these are ordered as the values are,
// then infinity, then the NaNs. Starts at 0.
struct Amax {
    uint16_t bits = 0;
};

MOK_HD inline bool is_finite(Amax amax) {
    return amax.bits < 0x7f80u;
}

MOK_HD inline Amax max_with(Amax amax, Bf16 value) {
    const uint16_t size = value.bits & 0x7fffu;
    return {size > amax.bits ? size : amax.bits};
}

// The quotient that IEEE 754 rounds to nearest, whatever a translation unit asks of `/`.
MOK_HD inline float divide_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

struct Fp8Block {
    using Scale = float;
    static constexpr int64_t kBlock = 128;
    static constexpr int64_t kWeightRows = 128;  // rows of a weight that share a scale

    // At least 2^-142 for an amax above zero: never zero, though perhaps subnormal.
    MOK_HD static Scale scale_of(Amax amax) {
        if (!is_finite(amax)) return std::bit_cast<float>(0x7fc00000u);
        return divide_rounded(to_f32(Bf16{amax.bits}), kE4m3Max);
    }

    MOK_HD static E4m3 element_of(Bf16 value, Scale scale) {
        if (scale == 0.0f) return to_e4m3(to_f32(value));
        return to_e4m3(divide_rounded(to_f32(value), scale));
    }

    MOK_HD static float dequantise_f32(E4m3 element, Scale scale) {
        return to_f32(element) * scale;
    }

    // Scales lie row-major, [outer][block].
    MOK_HD static int64_t scale_index(int64_t outer, int64_t block, int64_t num_blocks) {
        return outer * num_blocks + block;
    }
    MOK_HD static int64_t num_scales(int64_t num_outer, int64_t num_blocks) {
        return num_outer * num_blocks;
    }
};

struct Mxfp8 {
    using Scale = Ue8m0;
    static constexpr int64_t kBlock = 32;
    static constexpr int64_t kWeightRows = 1;

    // 448 = 2^8 * 1.75. A BF16 with exponent byte e and fraction f is 2^(e - 127) (1 + f / 128), so
    // k + 127 is e - 8 up to f = 96 and one more above; subnormals are below 448 * 2^-127.
    MOK_HD static Scale scale_of(Amax amax) {
        if (!is_finite(amax)) return {kUe8m0NaN};
        const int32_t byte = (amax.bits >> 7) - 8 + ((amax.bits & 0x7f) > 96);
        return {static_cast<uint8_t>(byte > 0 ? byte : 0)};
    }

    // 2^-k is a normal FP32 number for every scale of scale_of, k of -127..120. The product is
    // exact unless it is below 2^-126, where E4M3 has zero.
    MOK_HD static E4m3 element_of(Bf16 value, Scale scale) {
        if (scale.bits == kUe8m0NaN) return {kE4m3NaN};
        return to_e4m3(to_f32(value) *
                       std::bit_cast<float>(static_cast<uint32_t>(254 - scale.bits) << 23));
    }

    MOK_HD static float dequantise_f32(E4m3 element, Scale scale) {
        return to_f32(dequantise(element, scale));
    }

    MOK_HD static int64_t scale_index(int64_t outer, int64_t block, int64_t num_blocks) {
        return scale_tile_index(outer, block, num_blocks);
    }
    MOK_HD static int64_t num_scales(int64_t num_outer, int64_t num_blocks) {
        return num_tiled_scales(num_outer, num_blocks);
    }
};

// The part of one row or column that a block covers: `count` values that lie `stride` apart. count
// may be smaller than the block, where the matrix ends.
struct BlockSource {
    const Bf16* values;
    int64_t stride;
    int64_t count;
};

MOK_HD inline Amax max_with(Amax amax, const BlockSource& from) {
    for (int64_t i = 0; i < from.count; ++i) amax = max_with(amax, from.values[i * from.stride]);
    return amax;
}

// Writes to[0..kBlock), zeros behind the source's end.
template <class Recipe>
MOK_HD inline void quantise_elements(const BlockSource& from, typename Recipe::Scale scale,
                                     E4m3* to) {
    for (int64_t i = 0; i < from.count; ++i) {
        to[i] = Recipe::element_of(from.values[i * from.stride], scale);
    }
    for (int64_t i = from.count; i < Recipe::kBlock; ++i) to[i] = {0};
}

// One block with a scale of its own: its elements to to[0..kBlock), its scale returned.
template <class Recipe>
MOK_HD inline typename Recipe::Scale quantise_block(const BlockSource& from, E4m3* to) {
    const typename Recipe::Scale scale = Recipe::scale_of(max_with(Amax{}, from));
    quantise_elements<Recipe>(from, scale, to);
    return scale;
}

}  // namespace mok
