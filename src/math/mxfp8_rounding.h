#pragma once

#include "math/block_scale.h"

// What Mxfp8 keeps of BF16 values, as BF16 numbers: dequantise(element_of(x, scale), scale), for
// two neighbours in a word (the first in the low half) at once, whose blocks may be two. It is
// rounding to 4 significant bits or to a multiple of 2^(k - 9), whichever is coarser, k being the
// scale's exponent; and adding 1.5 * 2^(e + 4) to x and taking it away again rounds a BF16 to
// multiples of 2^(e - 3), ties to even, for every |x| < 2^(e + 1).
namespace mok {

// The larger half of two words, half by half.
MOK_HD inline uint32_t max_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    return __vmaxu2(a, b);
#else
    const uint32_t low = (a & 0xffffu) > (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
    const uint32_t high = (a >> 16) > (b >> 16) ? a >> 16 : b >> 16;
    return high << 16 | low;
#endif
}

// Whether round_to_mxfp8 may be used for a block of this amax: none of its numbers leaves BF16's
// normal range on the way. Others are rounded by Mxfp8's own functions (mxfp8_exactly).
MOK_HD inline bool is_plain(Amax amax) {
    return amax.bits == 0 || static_cast<uint32_t>(amax.bits) - 0x0900u < 0x7300u;
}
MOK_HD inline Bf16 mxfp8_exactly(Bf16 value, Ue8m0 scale) {
    return dequantise(Mxfp8::element_of(value, scale), scale);
}

// Of the amaxes of two plain blocks, each in its half: the exponents of 2^(k - 6), the least normal
// element times the scale, where a BF16 has its exponent. 448 = 2^8 * 1.75: k + 8 is amax's
// exponent, or one more where its fraction is above 96 / 128.
MOK_HD inline uint32_t mxfp8_floors(uint32_t amaxes) {
    const uint32_t tops = (amaxes + 0x001f001fu) & 0x7f807f80u;
    return max_halves(tops, 0x08000800u) - 0x07000700u;
}

// add(a, b): the sums of two pairs of BF16, rounded to nearest, ties to even, subnormals and all.
// Zero loses its sign.
template <class Add>
MOK_HD inline uint32_t round_to_mxfp8(uint32_t pair, uint32_t floors, Add&& add) {
    const uint32_t exponents = max_halves(pair & 0x7f807f80u, floors);
    const uint32_t shift = exponents + 0x02400240u;  // 1.5 * 2^(e + 4)
    return add(add(pair, shift), shift ^ 0x80008000u);
}

}  // namespace mok
