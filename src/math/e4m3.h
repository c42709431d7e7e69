#pragma once

#include <bit>
#include <cstdint>

#include "math/host_device.h"

namespace mok {

// E4M3, the 8-bit float with finite range of the OCP 8-bit Floating Point Specification (OFP8)
// 1.0, which others call E4M3FN: sign, 4 bits of exponent (bias 7), 3 bits of fraction.
//
//     exponent 1..15:  (-1)^s 2^(exponent - 7) (1 + fraction / 8)
//     exponent 0:      (-1)^s 2^-6 fraction / 8
//     0x7f and 0xff:   NaN; there is no infinity
//
// Largest 448 (0x7e), least normal 2^-6 (0x08), least above zero 2^-9 (0x01). Storage only.
struct E4m3 {
    uint8_t bits;
};

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3NaN = 0x7f;

// Rounds to nearest, ties to even, and saturates: what is above 448, infinity included, becomes 448
// with its sign. Every NaN becomes 0x7f; zero keeps its sign. These are the bits of PTX's
// cvt.rn.satfinite.e4m3x2.f32. Integer arithmetic alone, so the same on every machine.
MOK_HD inline E4m3 to_e4m3(float value) {
    constexpr uint32_t kInf = 0x7f800000u, kMax = 0x43e00000u, kLeastNormal = 0x3c800000u;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    if (size > kInf) return {kE4m3NaN};
    if (size >= kMax) return {static_cast<uint8_t>(sign | 0x7eu)};
    if (size >= kLeastNormal) {
        // 20 of the 23 bits of fraction go; the bias goes from 127 to 7.
        const uint32_t rounded = (size + 0x7ffffu + (size >> 20 & 1u)) >> 20;
        return {static_cast<uint8_t>(sign | (rounded - (120u << 3)))};
    }
    // Multiples of 2^-9. The value is significand * 2^(exponent - 150), so it is that significand
    // over 2^shift of them.
    const uint32_t shift = 141u - (size >> 23);
    if (shift > 24u) return {static_cast<uint8_t>(sign)};
    const uint32_t significand = (size & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1u);
    const uint32_t rounded = (significand + half - 1u + (significand >> shift & 1u)) >> shift;
    return {static_cast<uint8_t>(sign | rounded)};
}

// Exact. NaN becomes a quiet NaN.
MOK_HD inline float to_f32(E4m3 value) {
    const uint32_t sign = (value.bits & 0x80u) << 24, size = value.bits & 0x7fu;
    if (size == kE4m3NaN) return std::bit_cast<float>(0x7fc00000u);
    if (size >= 8u) return std::bit_cast<float>(sign | ((size << 20) + (120u << 23)));
    const float magnitude = static_cast<float>(size) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

}  // namespace mok
