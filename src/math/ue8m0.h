#pragma once

#include <bit>
#include <cstdint>

#include "math/bf16.h"
#include "math/e4m3.h"
#include "math/host_device.h"

namespace mok {

// E8M0 (PTX: ue8m0), the scale of the OCP Microscaling Formats (MX) Specification 1.0, section
// 5.4.1: a power of two. Byte b is 2^(b - 127) for b of 0..254, and 255 is NaN; no sign, no zero,
// no infinity.
struct Ue8m0 {
    uint8_t bits;
};

inline constexpr uint8_t kUe8m0NaN = 0xff;

// Exact: byte 0 is the FP32 subnormal 2^-127.
MOK_HD inline float to_f32(Ue8m0 scale) {
    if (scale.bits == kUe8m0NaN) return std::bit_cast<float>(0x7fc00000u);
    if (scale.bits == 0) return std::bit_cast<float>(0x00400000u);
    return std::bit_cast<float>(static_cast<uint32_t>(scale.bits) << 23);
}

// element * scale as a BF16 number, the operand of a tensor core without block scales. The product
// in FP32 is exact where it does not overflow (it is a multiple of 2^-136), so there is one
// rounding:
//     exact where the product is below 2^128 and at least 2^-130 in size (and for zero);
//     below, rounded to the nearest multiple of 2^-133, BF16's least, ties to even;
//     2^128 and more becomes infinity, as it does in FP32. From a BF16 source that is 256 * 2^120,
//     which values of at least 248 * 2^120 (3.3e38) round to;
//     NaN of an element or a scale is 0x7fc0 on every processor.
// test_number_formats forms all 65,536 products in FP64. Subnormals must not be flushed.
MOK_HD inline Bf16 dequantise(E4m3 element, Ue8m0 scale) {
    const float product = to_f32(element) * to_f32(scale);
    // Processors differ in the NaN that a product gives.
    return product != product ? Bf16{0x7fc0} : to_bf16(product);
}

}  // namespace mok
