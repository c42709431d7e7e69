#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "math/block_scale.h"

namespace mok {

// What Fp8Block::element_of divides by, for many values of one block: a reciprocal in two parts
// instead of a division each. to_e4m3(quotient(x)) has the bits of element_of(x, scale) for every x
// of the block, |x| <= amax.
//
// Why: the two parts are 1 / scale but for 2^-46 of it, and their product with x is rounded once.
// So it differs from the rounded quotient only where x / scale lies that close to the middle of two
// floats, and its E4M3 only if one of these two is the middle of two E4M3 numbers m, so that
// x / scale = m (1 + 2^-24 / significand of m) but for 2^-46. As x and amax have 8 bits, 448 x /
// amax would have to be m, and the rounding of amax / 448 exactly that far off; its error is a
// multiple of amax / 7 in units of its last place, m's significand has 5 bits, and the two never
// meet (test_block_scale looks at every pair). Blocks near the least exponents are lifted by 2^64
// first, so that nothing that counts is lost below them.
class Fp8Divider {
  public:
    MOK_HD explicit Fp8Divider(Amax amax) : scale_(Fp8Block::scale_of(amax)) {
        constexpr uint16_t kLifted = (127 - 60) << 7;  // 2^-60
        lift_ = amax.bits < kLifted ? 0x1p64f : 1.0f;
        const float scale = scale_ * lift_;
        if (scale_ == 0.0f) return;
        // The larger part is not above 1 / scale: both have the same sign, which zero keeps.
        high_ = divide_rounded(1.0f, scale);
        float rest = std::fma(-high_, scale, 1.0f);
        if (rest < 0.0f) {
            high_ = std::bit_cast<float>(std::bit_cast<uint32_t>(high_) - 1);
            rest = std::fma(-high_, scale, 1.0f);
        }
        low_ = rest * high_;
    }

    MOK_HD float scale() const { return scale_; }

    // Keeps the sign of zero; NaN for every x where the block holds an infinity or a NaN.
    MOK_HD float quotient(float x) const { return quotient_of_lifted(x * lift_); }

    // The same in two steps: what x is multiplied by first, which is mostly 1.
    MOK_HD float lift() const { return lift_; }
    MOK_HD float quotient_of_lifted(float x) const { return std::fma(x, high_, x * low_); }

  private:
    float scale_, lift_, high_ = 0.0f, low_ = 0.0f;
};

}  // namespace mok
