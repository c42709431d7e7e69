#pragma once

#include <cstdint>

namespace mok::oracle {

// Sums of products of E4M3 numbers as the tensor cores of sm_90 form them, to the bit: of 32
// products and the sum so far each is cut off, towards zero, 13 binary places below the largest
// exponent among them, a product's exponent being the sum of its factors' (of a subnormal factor
// -6; zeros have none); and then the total 13 places below its own. Found on an H200, and checked
// there by gpu_test_hopper_sums.
inline constexpr int kHopperStep = 32;
inline constexpr int kHopperPlaces = 13;

// Factors and their exponents, as hopper_exponent gives them.
struct HopperFactors {
    const float* values;
    const int32_t* exponents;
};
int32_t hopper_exponent(float e4m3);

// The sum of `count` products, a multiple of kHopperStep, formed from zero. Factors are finite.
float hopper_sum(const HopperFactors& a, const HopperFactors& b, int64_t count);

}  // namespace mok::oracle
