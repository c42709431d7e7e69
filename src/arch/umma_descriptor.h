#pragma once

#include <cstdint>

#include "arch/major.h"
#include "math/host_device.h"

// What tcgen05.mma is told of its operands, as bits. Sources: PTX ISA 9.0, sections "Shared memory
// descriptor" and "Instruction descriptor" of the tcgen05 family.
namespace mok::arch {

// An operand in shared memory, swizzled by 128 bytes as the copy engine writes it, at a multiple of
// 1024 bytes (or 16 elements of k further on):
//     Major::K      rows of 64 BF16 of k; groups of 8 rows are 1024 bytes apart (the stride)
//     Major::Outer  rows of 64 BF16 of the other dimension, 64 rows of k; groups of 8 rows are 1024
//                   bytes apart (the stride), the next 64 of the dimension 8192 (the leading
//                   offset)
// Bits 0..13 address / 16, 16..29 leading offset / 16 (Major::K: unused, 1), 32..45 stride / 16,
// 46..48 the constant 1, 49..51 offset of the swizzle's base (0), 52 leading offset relative (0),
// 61..63 swizzle (2: 128 bytes).
MOK_HD constexpr uint64_t umma_operand(uint32_t smem_address, Major major) {
    const uint64_t leading = major == Major::K ? 1 : 8192 / 16;
    return (static_cast<uint64_t>(smem_address & 0x3ffff) >> 4) | (leading << 16) |
           (uint64_t{1024 / 16} << 32) | (uint64_t{1} << 46) | (uint64_t{2} << 61);
}
// What 16 elements along k add to it.
MOK_HD constexpr uint64_t umma_operand_step(Major major) {
    return major == Major::K ? 2 : 128;
}

// A product d[m, n] (+)= a[m, 16] b[n, 16]^T of kind::f16: BF16 operands, FP32 sums. Bits 0..1
// sparsity selector, 2 sparse, 3 saturate (integers), 4..5 sums (1: FP32), 7..9 a and 10..12 b (1:
// BF16), 13 and 14 negate, 15 and 16 a and b are Major::Outer, 17..22 n / 8, 24..28 m / 16, 30..31
// shift (.ws); the rest is 0.
MOK_HD constexpr uint32_t umma_instruction(int m, int n, Major a, Major b) {
    return (uint32_t{1} << 4) | (uint32_t{1} << 7) | (uint32_t{1} << 10) |
           (static_cast<uint32_t>(a) << 15) | (static_cast<uint32_t>(b) << 16) |
           (static_cast<uint32_t>(n / 8) << 17) | (static_cast<uint32_t>(m / 16) << 24);
}

// ---- Block scales (kind::mxf8f6f4) --------------------------------------------------------------
// A product d[m, n] (+)= (a sa)[m, 32] (b sb)[n, 32]^T: E4M3 elements, K-innermost, an E8M0 scale
// of 32 elements. Bits 4..5 and 29..30: which byte of a column of scales is b's and a's; 7..9 a and
// 10..12 b (0: E4M3), 17..22 n / 8, 23 scales (1: E8M0), 24..28 m / 16; the rest is 0.
MOK_HD constexpr uint32_t umma_mxfp8_instruction(int m, int n, int scale_byte) {
    return (static_cast<uint32_t>(scale_byte) << 4) | (static_cast<uint32_t>(n / 8) << 17) |
           (uint32_t{1} << 23) | (static_cast<uint32_t>(m / 16) << 24) |
           (static_cast<uint32_t>(scale_byte) << 29);
}
// What 32 elements of one byte along k add to umma_operand(address, Major::K): 32 bytes, as 16 of
// two bytes.
inline constexpr uint64_t kUmmaByteStep = 2;

// A tile of 128 x 4 scales in shared memory, 512 bytes in one piece, as tcgen05.cp reads it: 32
// rows of 16 bytes, 8 of them (128 bytes) a core matrix without swizzle, the next 8 the stride on.
// Bits as umma_operand's; swizzle 0.
MOK_HD constexpr uint64_t scale_tile_descriptor(uint32_t smem_address) {
    return (static_cast<uint64_t>(smem_address & 0x3ffff) >> 4) | (uint64_t{128 / 16} << 32) |
           (uint64_t{1} << 46);
}
// Columns of tensor memory that a tile of scales takes.
inline constexpr uint32_t kScaleTileColumns = 4;

// Tensor memory: 128 lanes x 512 columns of 32 bits. Bits 31..16 of an address are the lane, 15..0
// the column.
inline constexpr uint32_t kTensorLanes = 128, kTensorColumns = 512;
MOK_HD constexpr uint32_t tensor_address(uint32_t base, uint32_t lane, uint32_t column) {
    return base + (lane << 16) + column;
}

}  // namespace mok::arch
