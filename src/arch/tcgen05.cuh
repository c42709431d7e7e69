#pragma once

#include <cstdint>

#include "arch/barrier.cuh"
#include "arch/umma_descriptor.h"

// Tensor-core products of one CTA on sm_100a and sm_103a (PTX ISA, "TensorCore 5th generation
// family instructions"): both operands in shared memory, sums in tensor memory. Written out here
// for both, because cuda::ptx of CUDA 13.0 has them for sm_100a and refuses sm_103a.
namespace mok::arch {

// A warp takes `columns` (a power of two, 32..512) of the multiprocessor's tensor memory and writes
// the address to shared memory; it waits where another CTA still holds them. The same warp gives
// them back before the CTA ends.
__device__ inline void take_tensor_memory(uint32_t* address, uint32_t columns) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(address))),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
__device__ inline void give_tensor_memory(uint32_t address, uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns));
}

// d[128, 256] (+)= a[128, 16] b[256, 16]^T, BF16 in, FP32 sums at a tensor memory address: row r in
// lane r. One thread issues it; products of one thread run in the order of issue. accumulate = 0
// starts from zero.
__device__ inline void umma_m128n256k16(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                        int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
        : "memory");
}
// One arrival at a barrier when all products that this thread has issued are done: with their
// operands, and with the sums for who waits and then calls umma_fence_after.
__device__ inline void umma_commit(Barrier* bar) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            static_cast<uint32_t>(__cvta_generic_to_shared(bar)))
        : "memory");
}

// Order between tensor memory and barriers: before an arrival, and after a wait.
__device__ inline void umma_fence_before() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ inline void umma_fence_after() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// 16 lanes x 64 columns between tensor memory and d[kFirst] up to d[kFirst + 31] of a warp. The
// address is that of the first lane, which is in the warp's own 32: 32 (warp of the warpgroup) or
// 16 more. Thread t holds, for block j of 8 columns, d[kFirst + 4j + 2h + c] = element (lane 8h + t
// / 4, column 8j + 2 (t % 4) + c): 16 rows as wgmma_m64n256k16 has them.
template <int kFirst>
__device__ inline void load_64_columns(float (&d)[128], uint32_t address) {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x8.b32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, [%32];"
        : "=f"(d[kFirst + 0]), "=f"(d[kFirst + 1]), "=f"(d[kFirst + 2]), "=f"(d[kFirst + 3]),
          "=f"(d[kFirst + 4]), "=f"(d[kFirst + 5]), "=f"(d[kFirst + 6]), "=f"(d[kFirst + 7]),
          "=f"(d[kFirst + 8]), "=f"(d[kFirst + 9]), "=f"(d[kFirst + 10]), "=f"(d[kFirst + 11]),
          "=f"(d[kFirst + 12]), "=f"(d[kFirst + 13]), "=f"(d[kFirst + 14]), "=f"(d[kFirst + 15]),
          "=f"(d[kFirst + 16]), "=f"(d[kFirst + 17]), "=f"(d[kFirst + 18]), "=f"(d[kFirst + 19]),
          "=f"(d[kFirst + 20]), "=f"(d[kFirst + 21]), "=f"(d[kFirst + 22]), "=f"(d[kFirst + 23]),
          "=f"(d[kFirst + 24]), "=f"(d[kFirst + 25]), "=f"(d[kFirst + 26]), "=f"(d[kFirst + 27]),
          "=f"(d[kFirst + 28]), "=f"(d[kFirst + 29]), "=f"(d[kFirst + 30]), "=f"(d[kFirst + 31])
        : "r"(address)
        : "memory");
}
template <int kFirst>
__device__ inline void store_64_columns(const float (&d)[128], uint32_t address) {
    asm volatile(
        "tcgen05.st.sync.aligned.16x256b.x8.b32 [%32], {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "};" ::"f"(d[kFirst + 0]),
        "f"(d[kFirst + 1]), "f"(d[kFirst + 2]), "f"(d[kFirst + 3]), "f"(d[kFirst + 4]),
        "f"(d[kFirst + 5]), "f"(d[kFirst + 6]), "f"(d[kFirst + 7]), "f"(d[kFirst + 8]),
        "f"(d[kFirst + 9]), "f"(d[kFirst + 10]), "f"(d[kFirst + 11]), "f"(d[kFirst + 12]),
        "f"(d[kFirst + 13]), "f"(d[kFirst + 14]), "f"(d[kFirst + 15]), "f"(d[kFirst + 16]),
        "f"(d[kFirst + 17]), "f"(d[kFirst + 18]), "f"(d[kFirst + 19]), "f"(d[kFirst + 20]),
        "f"(d[kFirst + 21]), "f"(d[kFirst + 22]), "f"(d[kFirst + 23]), "f"(d[kFirst + 24]),
        "f"(d[kFirst + 25]), "f"(d[kFirst + 26]), "f"(d[kFirst + 27]), "f"(d[kFirst + 28]),
        "f"(d[kFirst + 29]), "f"(d[kFirst + 30]), "f"(d[kFirst + 31]), "r"(address)
        : "memory");
}
// All 256 columns, complete on return. The wait hands every register on, so that nothing reads one
// before it.
__device__ inline void load_sums(float (&d)[128], uint32_t address) {
    load_64_columns<0>(d, address);
    load_64_columns<32>(d, address + 64);
    load_64_columns<64>(d, address + 128);
    load_64_columns<96>(d, address + 192);
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i]));
}
// 16 lanes x 32 columns, as load_64_columns has them, complete on return.
__device__ inline void load_32_columns(float (&d)[16], uint32_t address) {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x4.b32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
          "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
          "=f"(d[14]), "=f"(d[15])
        : "r"(address)
        : "memory");
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 16; ++i) asm volatile("" : "+f"(d[i]));
}
__device__ inline void store_sums(const float (&d)[128], uint32_t address) {
    store_64_columns<0>(d, address);
    store_64_columns<32>(d, address + 64);
    store_64_columns<64>(d, address + 128);
    store_64_columns<96>(d, address + 192);
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

}  // namespace mok::arch
