#pragma once

#include <bit>
#include <cstdint>

#include "math/host_device.h"

namespace mok {

// bfloat16: the upper half of an IEEE-754 binary32. Storage only; arithmetic is done in FP32.
struct Bf16 {
    uint16_t bits;
};

MOK_HD inline float to_f32(Bf16 value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN (made quiet, sign and upper payload kept).
MOK_HD inline Bf16 to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
    const uint32_t rounding = 0x7fffu + ((bits >> 16) & 1u);
    return {static_cast<uint16_t>((bits + rounding) >> 16)};
}

}  // namespace mok
