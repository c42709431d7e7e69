#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

#include "arch/major.h"

// What PTX ISA 9.0 says of the bits of descriptors of tcgen05.mma, and of where the operands that
// they name lie in shared memory.
namespace mok_test {

struct Field {
    int first_bit, width;
    uint64_t value;
};
inline uint64_t assembled(std::initializer_list<Field> fields) {
    uint64_t bits = 0;
    for (const Field& f : fields) {
        EXPECT_LT(f.value, uint64_t{1} << f.width);
        bits |= f.value << f.first_bit;
    }
    return bits;
}
// The instruction descriptor of kind::mxf8f6f4 for M x N, K-major E4M3 and E8M0 scales of which
// `byte` of a column is read. Sparse, b's scale, A and B (0: E4M3), negate A, B, transpose A, B,
// N / 8, scales (1: E8M0), M / 128, a's scale (PTX ISA, "Instruction descriptor").
inline uint64_t mxfp8_instruction(uint64_t m, uint64_t n, uint64_t byte) {
    return assembled({{2, 1, 0},
                      {4, 2, byte},
                      {7, 3, 0},
                      {10, 3, 0},
                      {13, 1, 0},
                      {14, 1, 0},
                      {15, 1, 0},
                      {16, 1, 0},
                      {17, 6, n / 8},
                      {23, 1, 1},
                      {27, 2, m / 128},
                      {29, 2, byte}});
}
inline uint64_t field(uint64_t bits, int first_bit, int width) {
    return (bits >> first_bit) & ((uint64_t{1} << width) - 1);
}

// The byte of an element as the 128-byte swizzle has it: bits 4..6 of an address are exchanged with
// bits 7..9 by exclusive or (PTX ISA, "Swizzling modes").
inline uint32_t swizzled(uint32_t byte) {
    return byte ^ ((byte >> 7 & 7) << 4);
}

// Byte of element (row, k) of the operand that a descriptor names, for k < 16: the canonical
// layouts of PTX ISA, in units of 2-byte elements with T = 8 of them in 128 bits,
//     K-major   ((8, m), (T, 2k)) : ((8T, SBO), (1, T))
//     MN-major  ((T, 8, m), (8, k)) : ((1, T, LBO), (8T, SBO))
inline uint32_t byte_of(uint64_t descriptor, mok::arch::Major major, uint32_t row, uint32_t k) {
    const auto start = static_cast<uint32_t>(field(descriptor, 0, 14) * 16);
    const auto leading = static_cast<uint32_t>(field(descriptor, 16, 14) * 16);
    const auto stride = static_cast<uint32_t>(field(descriptor, 32, 14) * 16);
    const uint32_t offset = major == mok::arch::Major::K
                                ? row % 8 * 128 + row / 8 * stride + k * 2
                                : row % 64 * 2 + row / 64 * leading + k % 8 * 128 + k / 8 * stride;
    return swizzled(start + offset);
}

}  // namespace mok_test
