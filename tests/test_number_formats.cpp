// E4M3 and E8M0 against their specifications in FP64, and their products as BF16 numbers.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "math/ue8m0.h"

namespace mok {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// ---- OFP8 E4M3 as its specification's table has it, in FP64

double value_of(int code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double size =
        exponent == 0 ? std::ldexp(fraction, -6 - 3) : std::ldexp(8 + fraction, exponent - 7 - 3);
    return code & 0x80 ? -size : size;
}

// Nearest of the 127 sizes, the even code between two: by search, without bits.
int nearest_code(double v) {
    if (std::isnan(v)) return 0x7f;
    const double size = std::abs(v);
    const int sign = std::signbit(v) ? 0x80 : 0;
    int best = 0;
    for (int code = 1; code <= 0x7e; ++code) {
        const double now = std::abs(value_of(code) - size),
                     before = std::abs(value_of(best) - size);
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return sign | (std::isinf(v) ? 0x7e : best);
}

void expect_code(float v) {
    ASSERT_EQ(to_e4m3(v).bits, nearest_code(v)) << std::hexfloat << v;
}

TEST(E4M3, DecodesEveryByte) {
    for (int code = 0; code < 256; ++code) {
        const float found = to_f32(E4m3{static_cast<uint8_t>(code)});
        if ((code & 0x7f) == 0x7f) {
            EXPECT_TRUE(std::isnan(found)) << code;
        } else {
            EXPECT_EQ(found, value_of(code)) << code;
            EXPECT_EQ(std::signbit(found), code >= 0x80) << code;
            EXPECT_EQ(to_e4m3(found).bits, code);
        }
    }
    EXPECT_EQ(value_of(0x7e), kE4m3Max);
}

TEST(E4M3, RoundsEveryBf16) {
    for (int bits = 0; bits <= 0xffff; ++bits) {
        expect_code(to_f32(Bf16{static_cast<uint16_t>(bits)}));
        if (HasFatalFailure()) return;
    }
}

TEST(E4M3, RoundsAroundEveryValueAndEveryMiddle) {
    for (int code = 0; code <= 0x7e; ++code) {
        const double low = value_of(code), high = code == 0x7e ? 480.0 : value_of(code + 1);
        for (const double at : {low, (low + high) / 2, high}) {
            const float v = static_cast<float>(at);
            ASSERT_EQ(v, at);
            for (const float near : {std::nextafter(v, 0.0f), v, std::nextafter(v, kInf)}) {
                expect_code(near);
                expect_code(-near);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST(E4M3, RoundsRandomFloats) {
    std::mt19937 rng(1);
    for (int i = 0; i < 200000; ++i) {
        expect_code(std::bit_cast<float>(static_cast<uint32_t>(rng())));
        // Exponents of the format's range, where roundings differ.
        const uint32_t bits = static_cast<uint32_t>(rng());
        const uint32_t exponent = 115u + bits % 22u;
        expect_code(std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23));
        if (HasFatalFailure()) return;
    }
}

TEST(E4M3, SaturatesAndKeepsNaN) {
    for (const float v : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, kInf}) {
        EXPECT_EQ(to_e4m3(v).bits, 0x7e) << v;
        EXPECT_EQ(to_e4m3(-v).bits, 0xfe) << v;
    }
    EXPECT_EQ(to_e4m3(0.0f).bits, 0x00);
    EXPECT_EQ(to_e4m3(-0.0f).bits, 0x80);
    EXPECT_EQ(to_e4m3(-0x1p-10f).bits, 0x80) << "half of the least value is a tie: to zero";
    EXPECT_EQ(to_e4m3(std::nextafter(0x1p-10f, 1.0f)).bits, 0x01);
    for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc00000u}) {
        EXPECT_EQ(to_e4m3(std::bit_cast<float>(bits)).bits, 0x7f) << bits;
    }
}

// ---- E8M0

TEST(UE8M0, DecodesEveryByte) {
    for (int byte = 0; byte < 255; ++byte) {
        EXPECT_EQ(to_f32(Ue8m0{static_cast<uint8_t>(byte)}), std::ldexp(1.0, byte - 127)) << byte;
    }
    EXPECT_TRUE(std::isnan(to_f32(Ue8m0{255})));
}

// ---- E4M3 * 2^k as BF16, whose values are the multiples of 2^(e - 7) from 2^e to 2^(e + 1), e of
// -126..127, and the multiples of 2^-133 below.

double nearest_bf16(double v) {
    if (v == 0.0) return v;
    const int exponent = std::max(std::ilogb(v), -126);
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(v, 7 - exponent)), exponent - 7);
    return std::abs(rounded) >= 0x1p128 ? std::copysign(HUGE_VAL, v) : rounded;
}

TEST(Dequantise, AllPairsOfBytesAgainstFp64) {
    int exact = 0, rounded = 0, infinite = 0;
    for (int code = 0; code < 256; ++code) {
        for (int byte = 0; byte < 256; ++byte) {
            const Bf16 bf16 =
                dequantise({static_cast<uint8_t>(code)}, {static_cast<uint8_t>(byte)});
            const double found = to_f32(bf16);
            if ((code & 0x7f) == 0x7f || byte == 255) {
                ASSERT_EQ(bf16.bits, 0x7fc0) << code << ", " << byte;
                continue;
            }
            const double want = std::ldexp(value_of(code), byte - 127);
            ASSERT_EQ(found, nearest_bf16(want)) << code << ", " << byte;
            ASSERT_EQ(std::signbit(found), std::signbit(want)) << code << ", " << byte;
            const double size = std::abs(want);
            if (size >= 0x1p128) {
                ++infinite;
                ASSERT_GE(byte, 247) << "the largest scale of a BF16 source";
                ASSERT_TRUE(byte > 247 || std::abs(value_of(code)) >= 256.0) << code;
            } else if (size >= 0x1p-130 || size == 0.0) {
                ASSERT_EQ(found, want) << code << ", " << byte;
                ++exact;
            } else {
                ++rounded;
            }
        }
    }
    EXPECT_GT(exact, 60000);
    EXPECT_GT(rounded, 10);
    EXPECT_GT(infinite, 10);
}

}  // namespace
}  // namespace mok
