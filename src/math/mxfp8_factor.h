#pragma once

#include "math/block_scale.h"

namespace mok {

// What an Mxfp8 block's values are multiplied by, 2^-k: to_e4m3(value * factor) has the bits of
// Mxfp8::element_of(value, scale). NaN of a NaN scale.
MOK_HD inline float mxfp8_factor(Ue8m0 scale) {
    if (scale.bits == kUe8m0NaN) return std::bit_cast<float>(0x7fc00000u);
    return std::bit_cast<float>(static_cast<uint32_t>(254 - scale.bits) << 23);
}

// Four scales of neighbouring blocks as a word, the first in its lowest byte: byte `inner` of
// math/scale_tiles.h.
MOK_HD inline uint32_t with_scale(uint32_t word, int32_t inner, Ue8m0 scale) {
    return word | (static_cast<uint32_t>(scale.bits) << (8 * inner));
}

}  // namespace mok
