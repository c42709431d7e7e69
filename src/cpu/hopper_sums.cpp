#include "cpu/hopper_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mok::oracle {
namespace {

constexpr int32_t kOfZero = -1000;  // below what sums of exponents of other factors reach

float power_of_two(int32_t exponent) {  // of a normal number
    return std::bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23);
}

// Towards zero, to kHopperPlaces binary places.
float cut(float v) {
    constexpr uint32_t kLost = (1u << (23 - kHopperPlaces)) - 1;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) & ~kLost);
}

// Of a normal number, which every sum but zero is.
int32_t exponent_of(float v) {
    return static_cast<int32_t>(std::bit_cast<uint32_t>(v) >> 23 & 0xff) - 127;
}

}  // namespace

int32_t hopper_exponent(float e4m3) {
    return e4m3 == 0.0f ? kOfZero : std::max(std::ilogb(e4m3), -6);
}

float hopper_sum(const HopperFactors& a, const HopperFactors& b, int64_t count) {
    float total = 0.0f;
    for (int64_t k = 0; k < count; k += kHopperStep) {
        float product[kHopperStep];
        int32_t largest = kOfZero;
        for (int i = 0; i < kHopperStep; ++i) {
            product[i] = a.values[k + i] * b.values[k + i];
            largest = std::max(largest, a.exponents[k + i] + b.exponents[k + i]);
        }
        if (total != 0.0f) largest = std::max(largest, exponent_of(total));
        if (largest <= kOfZero / 2) continue;  // nothing but zeros
        const float units = power_of_two(kHopperPlaces - largest);
        int32_t sum = static_cast<int32_t>(total * units);
        for (int i = 0; i < kHopperStep; ++i) sum += static_cast<int32_t>(product[i] * units);
        total = cut(static_cast<float>(sum) * power_of_two(largest - kHopperPlaces));
    }
    return total;
}

}  // namespace mok::oracle
