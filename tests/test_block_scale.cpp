// The two rules that give a block its scale and its elements, against their definitions in FP64.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "math/block_scale.h"
#include "math/fp8_divider.h"

namespace mok {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class Recipe>
struct Block {
    std::array<E4m3, Recipe::kBlock> elements;
    typename Recipe::Scale scale;

    float at(int64_t i) const { return Recipe::dequantise_f32(elements[i], scale); }
};

template <class Recipe>
Block<Recipe> quantised(const std::vector<float>& values) {
    std::vector<Bf16> source;
    for (const float v : values) source.push_back(to_bf16(v));
    Block<Recipe> block;
    block.elements.fill({0x55});
    block.scale = quantise_block<Recipe>({source.data(), 1, static_cast<int64_t>(source.size())},
                                         block.elements.data());
    return block;
}

float bf16(float v) {
    return to_f32(to_bf16(v));
}

// ---- Mxfp8

// The definition, by search in FP64.
int least_byte(double amax) {
    int byte = 0;
    while (amax > 448.0 * std::ldexp(1.0, byte - 127)) ++byte;
    return byte;
}

TEST(Mxfp8Scale, IsTheSmallestPowerOfTwoForEveryAmax) {
    for (int bits = 0; bits < 0x7f80; ++bits) {
        const Amax amax{static_cast<uint16_t>(bits)};
        const double value = to_f32(Bf16{amax.bits});
        ASSERT_EQ(Mxfp8::scale_of(amax).bits, least_byte(value)) << value;
        ASSERT_LE(Mxfp8::scale_of(amax).bits, 247);
    }
    for (int bits = 0x7f80; bits <= 0x7fff; ++bits) {
        ASSERT_EQ(Mxfp8::scale_of({static_cast<uint16_t>(bits)}).bits, 0xff) << bits;
    }
}

// Every BF16 against every scale: x * 2^-k in FP64, where it is exact, rounded once.
TEST(Mxfp8Element, IsRoundedOnceForEveryValueAndScale) {
    for (int byte = 0; byte <= 247; byte += byte < 16 || byte > 240 ? 1 : 7) {
        const double scale = std::ldexp(1.0, byte - 127);
        for (int bits = 0; bits < 0x7f80; ++bits) {
            const Bf16 v{static_cast<uint16_t>(bits)};
            const double scaled = to_f32(v) / scale;
            // In FP32 only what is too small for E4M3 or above its range would be rounded.
            const double within = std::min(scaled, 0x1p100);
            const float as_float = within < 0x1p-100 ? 0.0f : static_cast<float>(within);
            ASSERT_TRUE(within < 0x1p-100 || as_float == within);
            ASSERT_EQ(Mxfp8::element_of(v, {static_cast<uint8_t>(byte)}).bits,
                      to_e4m3(as_float).bits)
                << byte << ", " << bits;
        }
    }
}

TEST(Mxfp8Block, ZerosHaveScaleByteZeroAndZeroElements) {
    const auto block = quantised<Mxfp8>(std::vector<float>(32, 0.0f));
    EXPECT_EQ(block.scale.bits, 0);
    for (const E4m3 e : block.elements) EXPECT_EQ(e.bits, 0);
    EXPECT_EQ(quantised<Mxfp8>({-0.0f}).elements[0].bits, 0x80) << "the sign stays";
}

TEST(Mxfp8Block, Of1e38NegativePower) {
    // 1e-38 is a BF16 subnormal, 109 * 2^-133: below 448 * 2^-127, so byte 0, 2^-127. In units of
    // that it is 109/64 = 1.703, between 1.625 and 1.75, and goes to 1.75.
    ASSERT_EQ(to_bf16(1e-38f).bits, 109);
    const auto block = quantised<Mxfp8>(std::vector<float>(32, 1e-38f));
    EXPECT_EQ(block.scale.bits, 0);
    for (int64_t i = 0; i < 32; ++i) ASSERT_EQ(block.at(i), 0x1.cp-127f);
}

TEST(Mxfp8Block, AmaxJustBelowAtAndAbove448TimesAPower) {
    for (int k = -126; k <= 118; ++k) {
        const uint16_t edge = to_bf16(std::ldexp(448.0f, k)).bits;
        ASSERT_EQ(to_f32(Bf16{edge}), std::ldexp(448.0, k));
        const auto block_of = [edge](int step) {
            return quantised<Mxfp8>({to_f32(Bf16{static_cast<uint16_t>(edge + step)}), 0.0f});
        };
        // 446 rounds to 448, 450 / 2 = 225 to 224: 448 * 2^k all three.
        for (const int step : {-1, 0, 1}) {
            const auto block = block_of(step);
            ASSERT_EQ(block.scale.bits, k + 127 + (step > 0)) << k << ", " << step;
            ASSERT_EQ(block.elements[0].bits, step > 0 ? 0x76 : 0x7e) << k << ", " << step;
            ASSERT_EQ(block.at(0), std::ldexp(448.0, k)) << k << ", " << step;
        }
    }
}

TEST(Mxfp8Block, SmallestAndLargestSources) {
    EXPECT_EQ(quantised<Mxfp8>({0x1p-133f}).scale.bits, 0);
    EXPECT_EQ(quantised<Mxfp8>({0x1p-133f}).at(0), 0x1p-133f);
    // The largest BF16, 255 * 2^120: k = 120, 255 goes to 256.
    const auto block = quantised<Mxfp8>({to_f32(Bf16{0x7f7f}), 1.0f});
    EXPECT_EQ(block.scale.bits, 247);
    EXPECT_EQ(to_f32(block.elements[0]), 256.0f);
    EXPECT_EQ(block.elements[1].bits, 0);
    EXPECT_EQ(block.at(0), kInf) << "256 * 2^120 is 2^128, which neither BF16 nor FP32 has";
    EXPECT_EQ(quantised<Mxfp8>({to_f32(Bf16{0x7f77})}).at(0), 0x1.ep127f) << "247 goes to 240";
    EXPECT_EQ(quantised<Mxfp8>({to_f32(Bf16{0x7f78})}).at(0), kInf) << "248 is the tie, to 256";
}

// ---- Fp8Block

TEST(Fp8BlockScale, IsAmaxOver448AndAmaxBecomes448ForEveryAmax) {
    for (int bits = 1; bits < 0x7f80; ++bits) {
        const Bf16 v{static_cast<uint16_t>(bits)};
        const float scale = Fp8Block::scale_of({v.bits});
        // FP64 has 53 bits, more than twice FP32's 24 and 2: rounding twice is rounding once.
        ASSERT_EQ(scale, static_cast<float>(double{to_f32(v)} / 448.0)) << bits;
        ASSERT_GT(scale, 0.0f) << bits;
        ASSERT_EQ(Fp8Block::element_of(v, scale).bits, 0x7e) << bits;
    }
}

// Every amax from 128 to 256 with every smaller value down to 2^-12. Rounding a quotient of two
// FP32 numbers to FP64 and then to FP32 is rounding it once, too.
TEST(Fp8BlockElement, IsTheQuotientRounded) {
    int unlike_reciprocal = 0;
    for (uint16_t amax = 0x4300; amax < 0x4380; ++amax) {
        const float scale = Fp8Block::scale_of({amax});
        for (uint16_t bits = 0x3980; bits <= amax; ++bits) {
            const float value = to_f32(Bf16{bits});
            const E4m3 want = to_e4m3(static_cast<float>(double{value} / scale));
            ASSERT_EQ(Fp8Block::element_of({bits}, scale).bits, want.bits) << amax << ", " << bits;
            unlike_reciprocal += to_e4m3(value * (1.0f / scale)).bits != want.bits;
        }
    }
    EXPECT_GT(unlike_reciprocal, 0) << "a product by the reciprocal would pass";
}

// Every amax, infinities and NaNs too, with every value down to 2^-20 of it and some of the smaller
// ones.
TEST(Fp8Divider, HasTheElementsOfADivision) {
    int64_t differ = 0;
    for (int amax = 0; amax < 0x8000; ++amax) {
        const Fp8Divider divider(Amax{static_cast<uint16_t>(amax)});
        const float scale = Fp8Block::scale_of({static_cast<uint16_t>(amax)});
        ASSERT_EQ(std::bit_cast<uint32_t>(divider.scale()), std::bit_cast<uint32_t>(scale));
        for (int size = amax; size >= 0; size -= size > amax - 20 * 128 ? 1 : 97) {
            for (const int sign : {0, 0x8000}) {
                const Bf16 x{static_cast<uint16_t>(size | sign)};
                const uint8_t want = Fp8Block::element_of(x, scale).bits;
                differ += to_e4m3(divider.quotient(to_f32(x))).bits != want;
            }
        }
    }
    EXPECT_EQ(differ, 0);
}

TEST(Fp8BlockBlock, ValuesComeBackWithinTheFormatsRounding) {
    std::vector<float> values;
    for (int i = 0; i < 128; ++i) values.push_back(bf16(std::ldexp(1.0f + i / 150.0f, i % 23 - 9)));
    const auto block = quantised<Fp8Block>(values);
    EXPECT_EQ(block.scale, *std::max_element(values.begin(), values.end()) / 448.0f);
    for (int i = 0; i < 128; ++i) {
        // Half a unit of 4 significant bits, or half of 2^-9 of the scale, and FP32's roundings.
        const float half = std::max(values[i] * 0x1p-4f, block.scale * 0x1p-10f);
        EXPECT_NEAR(block.at(i), values[i], half * (1.0f + 0x1p-16f)) << i;
    }
}

TEST(Fp8BlockBlock, ZerosHaveScaleZero) {
    const auto block = quantised<Fp8Block>(std::vector<float>(128, 0.0f));
    EXPECT_EQ(block.scale, 0.0f);
    for (const E4m3 e : block.elements) EXPECT_EQ(e.bits, 0);
    EXPECT_EQ(quantised<Fp8Block>({-0.0f}).elements[0].bits, 0x80) << "the sign stays";
}

// ---- both

template <class Recipe>
class BothRecipes : public testing::Test {};
using Recipes = testing::Types<Fp8Block, Mxfp8>;
TYPED_TEST_SUITE(BothRecipes, Recipes);

TYPED_TEST(BothRecipes, InfinityAndNaNMakeTheWholeBlockNaN) {
    for (const float bad : {kInf, -kInf, kNaN, -kNaN}) {
        for (const int64_t place : {int64_t{0}, int64_t{7}, TypeParam::kBlock - 1}) {
            std::vector<float> values(TypeParam::kBlock, 0.25f);
            values[place] = bad;
            const auto block = quantised<TypeParam>(values);
            if constexpr (std::is_same_v<TypeParam, Mxfp8>) {
                EXPECT_EQ(block.scale.bits, 0xff);
            } else {
                EXPECT_TRUE(std::isnan(block.scale));
            }
            for (int64_t i = 0; i < TypeParam::kBlock; ++i) {
                ASSERT_EQ(block.elements[i].bits, 0x7f) << bad << ", " << i;
                ASSERT_TRUE(std::isnan(block.at(i)));
            }
        }
    }
}

TYPED_TEST(BothRecipes, AShortBlockIsFilledWithZerosAndScaledByItsOwnValues) {
    const auto block = quantised<TypeParam>({-3.0f, 0.5f, 0.0f});
    EXPECT_EQ(block.elements[0].bits & 0x80, 0x80);
    EXPECT_NEAR(block.at(0), -3.0f, 3.0f / 16);
    EXPECT_NEAR(block.at(1), 0.5f, 0.5f / 16);
    for (int64_t i = 2; i < TypeParam::kBlock; ++i) ASSERT_EQ(block.elements[i].bits, 0);
}

TYPED_TEST(BothRecipes, OrderAndSignsOfABlockDoNotChangeItsScale) {
    std::vector<float> values;
    for (int64_t i = 0; i < TypeParam::kBlock; ++i) values.push_back((i % 17 - 8) * 0.37f);
    const auto first = quantised<TypeParam>(values);
    std::vector<float> other(values.rbegin(), values.rend());
    for (float& v : other) v = -v;
    const auto second = quantised<TypeParam>(other);
    for (int64_t i = 0; i < TypeParam::kBlock; ++i) {
        ASSERT_EQ(first.at(i), -second.at(TypeParam::kBlock - 1 - i)) << i;
    }
}

}  // namespace
}  // namespace mok
