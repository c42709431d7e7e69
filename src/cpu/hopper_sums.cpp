#include "cpu/hopper_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mok::oracle {
namespace {

constexpr int32_t kOfZero = -1000;  // below every exponent

float power_of_two(int32_t exponent) {  // of a normal number
    return std::bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23);
}

// Towards zero, to kHopperPlaces binary places.
float cut(float v) {
    constexpr uint32_t kLost = (1u << (23 - kHopperPlaces)) - 1;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) & ~kLost);
}

}  // namespace

int32_t hopper_exponent(float e4m3) {
    return e4m3 == 0.0f ? -6 : std::max(std::ilogb(e4m3), -6);
}

float hopper_sum(const HopperFactors& a, const HopperFactors& b, int64_t count) {
    float total = 0.0f;
    for (int64_t k = 0; k < count; k += kHopperStep) {
        float product[kHopperStep];
        int32_t largest = total == 0.0f ? kOfZero : std::ilogb(total);
        for (int i = 0; i < kHopperStep; ++i) {
            product[i] = a.values[k + i] * b.values[k + i];
            const int32_t exponent = a.exponents[k + i] + b.exponents[k + i];
            largest = std::max(largest, product[i] == 0.0f ? kOfZero : exponent);
        }
        if (largest == kOfZero) continue;
        const float units = power_of_two(kHopperPlaces - largest);
        int32_t sum = static_cast<int32_t>(total * units);
        for (int i = 0; i < kHopperStep; ++i) sum += static_cast<int32_t>(product[i] * units);
        total = cut(static_cast<float>(sum) * power_of_two(largest - kHopperPlaces));
    }
    return total;
}

}  // namespace mok::oracle
