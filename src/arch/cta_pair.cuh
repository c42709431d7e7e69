#pragma once

#include <cuda.h>

#include <cstdint>

#include "arch/cluster.cuh"
#include "arch/umma_descriptor.h"

// Tensor-core products of two CTAs of a cluster as one, on sm_100a and sm_103a (PTX ISA, "CTA Pair"
// of the tcgen05 family): each has half of the rows of both operands in its shared memory and the
// sums of its rows of A in its tensor memory. The first of the two issues the products. A kernel
// has either these or the instructions of tcgen05.cuh that take and give tensor memory, multiply
// and commit, never both (PTX ISA: one .cta_group for all of a kernel).
namespace mok::arch {

// A warp of each CTA takes `columns` of both multiprocessors' tensor memory, as take_tensor_memory
// does of one; they get the same address. Both give them back.
__device__ inline void take_pair_tensor_memory(uint32_t* address, uint32_t columns) {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(address)),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
}
__device__ inline void give_pair_tensor_memory(uint32_t address, uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns));
}

// d[256, 256] (+)= a[256, 16] b[256, 16]^T, BF16 in, FP32 sums. Of a and b rows 0..127 lie in the
// first CTA, which issues it, the others in the second, at the same addresses; so do rows of d, all
// 256 columns of a row in one lane. accumulate = 0 starts from zero.
__device__ inline void umma_m256n256k16(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                        int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
        : "memory");
}
// As umma_commit, at the barrier of both CTAs that lies where `bar` does.
__device__ inline void umma_commit_pair(Barrier* bar) {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(shared_address(bar)),
        "h"(static_cast<uint16_t>(3))
        : "memory");
}

// As load_tile into the shared memory of this CTA; its bytes count at a barrier of either CTA.
__device__ inline void load_tile_of_pair(void* smem, const CUtensorMap* map, int32_t col,
                                         int32_t row, int32_t index, uint32_t full_address) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".cta_group::2 [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(smem)),
        "l"(map), "r"(col), "r"(row), "r"(index), "r"(full_address)
        : "memory");
}
// The same of a map of make_tensor_map_by_fours, from row (a multiple of 4) on.
__device__ inline void load_tile_by_fours_of_pair(void* smem, const CUtensorMap* map, int32_t col,
                                                  int32_t row, int32_t index,
                                                  uint32_t full_address) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".cta_group::2 [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(smem)),
        "l"(map), "r"(col), "r"(row / 4), "r"(0), "r"(index), "r"(full_address)
        : "memory");
}

// An arrival at a barrier of either CTA that releases what this thread wrote and saw to the
// cluster, and one that also expects bytes.
__device__ inline void pair_arrive(uint32_t barrier_address) {
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier_address)
        : "memory");
}
__device__ inline void pair_arrive_expect(uint32_t barrier_address, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(
                     barrier_address),
                 "r"(bytes)
                 : "memory");
}
// As barrier_wait, for arrivals of either CTA.
__device__ inline void pair_wait(Barrier* bar, uint32_t parity) {
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, bar, parity)) {
    }
}

}  // namespace mok::arch
