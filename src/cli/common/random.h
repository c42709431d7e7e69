#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace mok::cli {

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

// Numbers that are the same on every standard library: std::mt19937_64 is specified to the bit, the
// standard distributions are not, so they are written out here.
class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}

    uint64_t bits() { return engine_(); }
    // Uniform in [0, 1), 53 bits.
    double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
    // Uniform in [0, n), n > 0, by the high half of a product (bias below n / 2^64).
    int64_t below(int64_t n) {
        __extension__ using Wide = unsigned __int128;
        const Wide product = static_cast<Wide>(engine_()) * static_cast<uint64_t>(n);
        return static_cast<int64_t>(product >> 64);
    }
    // N(0, 1) by the method of Box and Muller (1958); both of its numbers are used.
    double normal() {
        if (has_spare_) {
            has_spare_ = false;
            return spare_;
        }
        const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
        const double angle = 2.0 * std::numbers::pi * uniform();
        spare_ = radius * std::sin(angle);
        has_spare_ = true;
        return radius * std::cos(angle);
    }
    // N(0, 1) as training draws its weights: the first number of Box and Muller alone, from two
    // uniform ones in (0, 1].
    double first_normal() {
        const double radius = std::sqrt(-2.0 * std::log(uniform() + 0x1p-53));
        return radius * std::cos(2.0 * std::numbers::pi * (uniform() + 0x1p-53));
    }

  private:
    std::mt19937_64 engine_;
    double spare_ = 0.0;
    bool has_spare_ = false;
};

}  // namespace mok::cli
