// Rounding BF16 pairs to what MXFP8 keeps of them, against quantising and dequantising.
// Sanitizers: asan
#include <gtest/gtest.h>

#include "math/mxfp8_rounding.h"

namespace mok {
namespace {

// FP32 has 24 bits of significand, more than twice BF16's 8 and two: rounding the sum twice is
// rounding it once.
uint32_t add_on_host(uint32_t a, uint32_t b) {
    const auto half = [](uint32_t x, uint32_t y) {
        const float sum =
            to_f32(Bf16{static_cast<uint16_t>(x)}) + to_f32(Bf16{static_cast<uint16_t>(y)});
        return static_cast<uint32_t>(to_bf16(sum).bits);
    };
    return half(a >> 16, b >> 16) << 16 | half(a, b);
}

bool same_value(uint16_t a, uint16_t b) {
    return a == b || ((a | b) & 0x7fffu) == 0;  // zeros of either sign
}

// Every amax of a plain block with every value that its block may hold.
TEST(Mxfp8Rounding, IsQuantisingAndDequantising) {
    int64_t wrong = 0;
    for (uint32_t amax = 0; amax < 0x7f80u; ++amax) {
        const Amax of_block{static_cast<uint16_t>(amax)};
        if (!is_plain(of_block)) continue;
        const Ue8m0 scale = Mxfp8::scale_of(of_block);
        // The other half has a block of its own, that of a larger or smaller amax.
        const uint32_t other = amax == 0 ? 0x3f80u : 0x4080u;
        const uint32_t floors = mxfp8_floors(other << 16 | amax);
        // All values near the least that count, and a share of the others.
        const uint32_t step = amax % 128 == 97 || amax % 128 == 96 ? 1 : 61;
        for (uint32_t size = amax % step; size <= amax; size += step) {
            for (const uint32_t sign : {0u, 0x8000u}) {
                const uint32_t pair = other << 16 | sign | size;
                const uint32_t found = round_to_mxfp8(pair, floors, add_on_host);
                const Bf16 value{static_cast<uint16_t>(sign | size)};
                const Bf16 want = mxfp8_exactly(value, scale);
                if (!same_value(static_cast<uint16_t>(found), want.bits) && ++wrong < 10) {
                    ADD_FAILURE() << std::hex << "value " << value.bits << " of amax " << amax
                                  << ": expected " << want.bits << ", found " << (found & 0xffffu);
                }
                if (found >> 16 != other) ++wrong;
            }
        }
    }
    EXPECT_EQ(wrong, 0);
}

TEST(Mxfp8Rounding, LeavesTheEndsOfTheRangeToTheExactFunctions) {
    for (const uint16_t amax : {0x0001, 0x0080, 0x08ff, 0x7c00, 0x7f7f, 0x7f80, 0x7fff}) {
        EXPECT_FALSE(is_plain({amax})) << std::hex << amax;
    }
    for (const uint16_t amax : {0x0000, 0x0900, 0x3f80, 0x7bff}) {
        EXPECT_TRUE(is_plain({amax})) << std::hex << amax;
    }
}

}  // namespace
}  // namespace mok
