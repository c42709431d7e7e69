// exp, BF16 rounding and the activation, one element at a time, against the C library in double and
// against the formats' definitions.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "math/activation_math.h"

namespace mok {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kLeastNormal = std::numeric_limits<float>::min();

// ---- exp

void expect_exp(float v) {
    const double want = std::exp(double{v});
    const float found = exp_f32(v);
    if (want > kMax) {
        ASSERT_EQ(found, kInf) << v;
    } else if (want < kLeastNormal) {
        ASSERT_LE(std::abs(found - want), double{kLeastNormal}) << v;
        ASSERT_GE(found, 0.0f) << v;
    } else {
        ASSERT_LE(std::abs(found - want), 0x1p-22 * want) << v;
    }
}

TEST(Exp, RelativeErrorBelowTwoToMinus22OverItsWholeRange) {
    // Every 127th float of either sign.
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 127) {
        const float v = std::bit_cast<float>(static_cast<uint32_t>(bits));
        if (std::isnan(v)) continue;
        expect_exp(v);
        if (HasFatalFailure()) return;
    }
}

TEST(Exp, EveryFloatAroundOverflowAndUnderflow) {
    for (const float edge : {88.72283f, -87.33654f, -103.9721f, 0.34657359f, -0.34657359f}) {
        float v = edge;
        for (int i = 0; i < 2000; ++i) v = std::nextafter(v, -kInf);
        for (int i = 0; i < 4000; ++i, v = std::nextafter(v, kInf)) {
            expect_exp(v);
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Exp, SpecialValues) {
    EXPECT_EQ(exp_f32(0.0f), 1.0f);
    EXPECT_EQ(exp_f32(-0.0f), 1.0f);
    EXPECT_EQ(exp_f32(kInf), kInf);
    EXPECT_EQ(exp_f32(-kInf), 0.0f);
    EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
    EXPECT_TRUE(std::isnan(exp_f32(-std::nanf(""))));
}

// ---- BF16: sign, 8 bits of exponent (bias 127), 7 bits of fraction

double value_of(uint16_t bits) {
    const int exponent = bits >> 7 & 0xff, fraction = bits & 0x7f;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -126 - 7)
                                           : std::ldexp(128 + fraction, exponent - 127 - 7);
    return bits & 0x8000 ? -magnitude : magnitude;
}
bool is_nan(uint16_t bits) {
    return (bits & 0x7fff) > 0x7f80;
}

TEST(BF16, EveryValueIsItsFormatsAndRoundsToItself) {
    for (uint32_t i = 0; i <= 0xffff; ++i) {
        const Bf16 b{static_cast<uint16_t>(i)};
        if (is_nan(b.bits)) {
            EXPECT_TRUE(std::isnan(to_f32(b))) << i;
            EXPECT_TRUE(is_nan(to_bf16(to_f32(b)).bits)) << i;
            continue;
        }
        if ((b.bits & 0x7fff) == 0x7f80) {
            EXPECT_EQ(to_f32(b), b.bits & 0x8000 ? -kInf : kInf);
        } else {
            EXPECT_EQ(to_f32(b), value_of(b.bits)) << i;
            EXPECT_EQ(std::signbit(to_f32(b)), (b.bits & 0x8000) != 0) << i;
        }
        EXPECT_EQ(to_bf16(to_f32(b)).bits, b.bits);
    }
}

// Between each value and the next: everything below the middle goes down, everything above it up,
// the middle to the even one. Rounding is monotonic, so the edges stand for all floats between.
TEST(BF16, RoundsToTheNearestTiesToEven) {
    for (uint32_t i = 0; i < 0x7f80; ++i) {
        const double low = value_of(static_cast<uint16_t>(i));
        // The value after the largest would be 2^128: half-way to it is infinity's.
        const double high = i == 0x7f7f ? 0x1p128 : value_of(static_cast<uint16_t>(i + 1));
        const float middle = static_cast<float>((low + high) / 2);
        ASSERT_EQ(middle, (low + high) / 2) << "the middle is a float";
        const uint16_t down = static_cast<uint16_t>(i), up = static_cast<uint16_t>(i + 1);
        const uint16_t even = i % 2 == 0 ? down : up;
        for (const uint16_t sign : {0, 0x8000}) {
            const auto rounded = [sign](float v) { return to_bf16(sign ? -v : v).bits; };
            ASSERT_EQ(rounded(std::nextafter(static_cast<float>(low), kInf)), sign | down);
            ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), sign | down) << middle;
            ASSERT_EQ(rounded(middle), sign | even) << middle;
            ASSERT_EQ(rounded(std::nextafter(middle, kInf)), sign | up) << middle;
            const float last = i == 0x7f7f ? kMax : std::nextafter(static_cast<float>(high), 0.0f);
            ASSERT_EQ(rounded(last), sign | up) << middle;
        }
    }
}

TEST(BF16, NaNWhosePayloadIsOnlyInTheLostBitsStaysNaN) {
    EXPECT_TRUE(is_nan(to_bf16(std::bit_cast<float>(0x7f800001u)).bits));
    EXPECT_TRUE(is_nan(to_bf16(std::bit_cast<float>(0xff80ffffu)).bits));
    EXPECT_TRUE(is_nan(to_bf16(std::bit_cast<float>(0x7fffffffu)).bits));
}

// ---- the saved gate and up

class SavedBesideTheLimit : public testing::TestWithParam<float> {};

TEST_P(SavedBesideTheLimit, KeepsItsSide) {
    const Activation a{GetParam(), 1.0f, 0.0f};
    const uint32_t middle = std::bit_cast<uint32_t>(a.limit);
    const uint32_t first = middle > 0x30000 ? middle - 0x30000 : 0;
    for (uint32_t bits = first; bits < std::min(middle + 0x30000, 0x7f800000u); bits += 7) {
        const float v = std::bit_cast<float>(bits);
        const float gate = to_f32(saved_gate(a, v));
        ASSERT_EQ(gate > a.limit, v > a.limit) << v;
        for (const float up : {v, -v}) {
            const float saved = to_f32(saved_up(a, up));
            ASSERT_EQ(saved > a.limit, up > a.limit) << up;
            ASSERT_EQ(saved < -a.limit, up < -a.limit) << up;
        }
        // It is one of the two neighbours, and the nearer one unless that would cross.
        const Bf16 nearest = to_bf16(v);
        const int steps = int{saved_gate(a, v).bits} - int{nearest.bits};
        ASSERT_LE(std::abs(steps), 1) << v;
        if ((to_f32(nearest) > a.limit) == (v > a.limit)) {
            ASSERT_EQ(steps, 0) << v;
        } else {
            ASSERT_EQ(gate > v, to_f32(nearest) < v) << v;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Limits, SavedBesideTheLimit,
                         testing::Values(7.0f, 10.0f, 7.03f, 0.1f, 1e-3f, 1e-39f, 3.0e38f));

TEST(SavedGateAndUp, NaNAndInfinityStay) {
    const Activation a{7.0f, 1.702f, 1.0f}, unlimited;
    EXPECT_TRUE(is_nan(saved_gate(a, std::nanf("")).bits));
    EXPECT_TRUE(is_nan(saved_up(a, std::nanf("")).bits));
    EXPECT_EQ(to_f32(saved_gate(a, kInf)), kInf);
    EXPECT_EQ(to_f32(saved_gate(a, -kInf)), -kInf);
    EXPECT_EQ(to_f32(saved_up(a, -kInf)), -kInf);
    EXPECT_EQ(to_f32(saved_gate(unlimited, kInf)), kInf);
    EXPECT_EQ(to_f32(saved_up(unlimited, -kInf)), -kInf);
}

// ---- the activation: g sigmoid(alpha g) (u + beta)

double hidden_of(const Activation& a, double gate, double up) {
    const double g = std::min(gate, double{a.limit});
    const double u = std::clamp(up, -double{a.limit}, double{a.limit});
    return g / (1.0 + std::exp(-a.alpha * g)) * (u + a.beta);
}

TEST(ActivationMath, ValueAndDerivativesOnAGrid) {
    for (const Activation& a : {Activation{}, Activation{7.0f, 1.702f, 1.0f}}) {
        for (float gate = -30.0f; gate < 30.0f; gate += 0.37f) {
            for (float up = -12.0f; up < 12.0f; up += 0.61f) {
                const double want = hidden_of(a, gate, up);
                const ActivationGrad found = activate_grad(a, gate, up);
                const double size = std::abs(gate) * (std::abs(up) + 1.0);
                ASSERT_NEAR(activate(a, gate, up), want, 1e-6 * size);
                ASSERT_EQ(found.hidden, activate(a, gate, up));
                const double step = 1e-5;  // central differences: error of order step^2
                const double d_gate =
                    (hidden_of(a, gate + step, up) - hidden_of(a, gate - step, up)) / (2 * step);
                const double d_up =
                    (hidden_of(a, gate, up + step) - hidden_of(a, gate, up - step)) / (2 * step);
                ASSERT_NEAR(found.gate, d_gate, 2e-6 * (size + 1.0)) << gate << ", " << up;
                ASSERT_NEAR(found.up, d_up, 2e-6 * (size + 1.0)) << gate << ", " << up;
            }
        }
    }
}

TEST(ActivationMath, TheGradientPassesAtTheLimitAndIsZeroOutside) {
    const Activation a{7.0f, 1.702f, 1.0f};
    const float above = std::nextafter(7.0f, kInf), below = -above;
    EXPECT_GT(activate_grad(a, 7.0f, 2.0f).gate, 0.0f);
    EXPECT_EQ(activate_grad(a, above, 2.0f).gate, 0.0f);
    EXPECT_GT(activate_grad(a, 1.0f, 7.0f).up, 0.0f);
    EXPECT_GT(activate_grad(a, 1.0f, -7.0f).up, 0.0f);
    EXPECT_EQ(activate_grad(a, 1.0f, above).up, 0.0f);
    EXPECT_EQ(activate_grad(a, 1.0f, below).up, 0.0f);
    EXPECT_GT(activate_grad(a, above, 7.0f).up, 0.0f) << "each has its own limit";
    // Zero, not 0 * NaN; inside the limits NaN passes.
    const float nan = std::nanf("");
    EXPECT_EQ(gate_gradient(activate_grad(a, above, 2.0f), nan), 0.0f);
    EXPECT_EQ(up_gradient(activate_grad(a, 1.0f, below), kInf), 0.0f);
    EXPECT_TRUE(std::isnan(gate_gradient(activate_grad(a, 7.0f, 2.0f), nan)));
    EXPECT_TRUE(std::isnan(up_gradient(activate_grad(a, 1.0f, 7.0f), nan)));
    EXPECT_TRUE(std::isnan(activate_grad(a, nan, 2.0f).gate));
}

}  // namespace
}  // namespace mok
