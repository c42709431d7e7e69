#pragma once

#include <cmath>

#include "math/block_scale.h"

namespace mok {

// What Fp8Block::element_of divides by, for many values of one block: a reciprocal and one
// correction instead of a division each. to_e4m3(quotient(x)) has the bits of element_of(x, scale)
// for every x of the block, |x| <= amax.
//
// Why: with q = x * (1 / scale) rounded, q - (q * scale - x) / scale is x / scale but for 2^-46 of
// it, and is rounded once. So it differs from the rounded quotient only where x / scale lies that
// close to the middle of two floats, and its E4M3 only if one of these two is the middle of two
// E4M3 numbers m, so that x / scale = m (1 + 2^-24 / significand of m) but for 2^-46. As x and amax
// have 8 bits, 448 x / amax would have to be m, and the rounding of amax / 448 exactly that far
// off; its error is a multiple of amax / 7 in units of its last place, m's significand has 5 bits,
// and the two never meet (test_block_scale looks at every pair). Blocks near the least exponents
// are lifted by 2^64 first, so that nothing that counts is lost below them.
class Fp8Divider {
  public:
    MOK_HD explicit Fp8Divider(Amax amax) : scale_(Fp8Block::scale_of(amax)) {
        constexpr uint16_t kLifted = (127 - 60) << 7;  // 2^-60
        lift_ = amax.bits < kLifted ? 0x1p64f : 1.0f;
        lifted_scale_ = scale_ * lift_;
        reciprocal_ = scale_ == 0.0f ? 0.0f : divide_rounded(1.0f, lifted_scale_);
    }

    MOK_HD float scale() const { return scale_; }

    // Keeps the sign of zero; NaN for every x where the block holds an infinity or a NaN.
    MOK_HD float quotient(float x) const {
        const float lifted = x * lift_;
        const float q = lifted * reciprocal_;
        return std::fma(std::fma(q, lifted_scale_, -lifted), -reciprocal_, q);
    }

  private:
    float scale_, lift_, lifted_scale_, reciprocal_;
};

}  // namespace mok
