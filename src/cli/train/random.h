#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace mok::train {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits.
inline uint64_t mix_bits(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

// The number that belongs to (seed, a, b): a generator without state, so that a resumed run draws
// what the uninterrupted one would have.
inline uint64_t random_at(uint64_t seed, uint64_t a, uint64_t b) {
    return mix_bits(mix_bits(mix_bits(seed) ^ a) ^ b);
}

// Standard normal numbers from std::mt19937_64 (whose output the C++ standard fixes) by the
// Box-Muller transform, which is written out because std::normal_distribution is not fixed.
class NormalGenerator {
  public:
    explicit NormalGenerator(uint64_t seed) : engine_(seed) {}

    double next() {
        const double radius = std::sqrt(-2.0 * std::log(uniform()));
        return radius * std::cos(2.0 * std::numbers::pi * uniform());
    }

  private:
    // In (0, 1]: 53 bits.
    double uniform() { return (static_cast<double>(engine_() >> 11) + 1.0) * 0x1p-53; }

    std::mt19937_64 engine_;
};

}  // namespace mok::train
