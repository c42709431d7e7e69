#pragma once

#include <cstdint>

#include "arch/barrier.cuh"
#include "arch/umma_descriptor.h"

// Block-scaled products on sm_100a and sm_103a, of one CTA (tcgen05.cuh) or of a pair of them
// (cta_pair.cuh): E4M3 elements in shared memory, an E8M0 scale for every 32 of them along k in
// tensor memory.
namespace mok::arch {

// ---- One CTA ------------------------------------------------------------------------------------
// A tile of 128 x 4 scales (math/scale_tiles.h) in shared memory to four columns of tensor memory,
// for all its quarters of 32 lanes. The thread that issues the products issues it; what it issues
// next reads what was copied, and the copy waits for the products that it has issued before (PTX
// ISA, "Pipelined Instructions" of tcgen05).
__device__ inline void copy_scales(uint32_t tensor, uint64_t tile) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(tile)
                 : "memory");
}

// d[128, 256] (+)= (a sa)[128, 32] (b sb)[256, 32]^T, E4M3 and E8M0 in, FP32 sums; rows as
// umma_m128n256k16 has them. Scales: tensor memory columns of a's 128 and of b's 256 rows; the
// instruction says which byte of a column. accumulate = 0 starts from zero.
__device__ inline void umma_mxfp8_m128n256k32(uint32_t d, uint64_t a, uint64_t b,
                                              uint32_t instruction, uint32_t a_scales,
                                              uint32_t b_scales, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 "
        "[%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(accumulate)
        : "memory");
}

// ---- A pair of CTAs -----------------------------------------------------------------------------

// As copy_scales, of a tile at the same place of both CTAs' shared memory, to columns of their own
// tensor memory. The first CTA's thread that issues the products issues it.
__device__ inline void copy_pair_scales(uint32_t tensor, uint64_t tile) {
    asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(tile)
                 : "memory");
}

// d[256, 256] (+)= (a sa)[256, 32] (b sb)[256, 32]^T, E4M3 and E8M0 in, FP32 sums; rows as
// umma_m256n256k16 has them. Scales: tensor memory columns of a's own 128 rows and of all of b's
// 256 rows, in both CTAs; the instruction says which byte of a column. accumulate = 0 starts from
// zero.
__device__ inline void umma_mxfp8_m256n256k32(uint32_t d, uint64_t a, uint64_t b,
                                              uint32_t instruction, uint32_t a_scales,
                                              uint32_t b_scales, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.block32 "
        "[%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(accumulate)
        : "memory");
}

}  // namespace mok::arch
