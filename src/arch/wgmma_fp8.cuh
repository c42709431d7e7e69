#pragma once

#include <cstdint>

#include "arch/wgmma.cuh"

// FP8 products of a warpgroup on sm_90a: E4M3 in, FP32 sums in registers, both operands
// K-innermost. B's descriptor is that of BF16 (wgmma.cuh): a row of 128 bytes is 128 elements, and
// adding 2 steps 32 elements along K.
namespace mok::arch {

// d[64, 64] (+)= a[64, 32] b[64, 32]^T. Thread t of the warpgroup holds, for block j of 8 columns,
// d[4j + 2h + c] = element (row 16 (t / 32) + 8h + (t % 32) / 4, column 8j + 2 (t % 4) + c). a lies
// in registers, as load_matrix_x4 gives it: a[0], a[1] rows (t % 32) / 4 and that + 8 of the warp's
// 16, elements 4 (t % 4).. of the 32; a[2], a[3] the same 16 elements on. It may not change until
// the product is done. accumulate = 0 starts from zero.
__device__ inline void wgmma_m64n64k32_e4m3(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                            int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// What of a descriptor of an operand that lies K-innermost (wgmma.cuh) says where it lies, its
// lower half; the upper half is the same everywhere. Adding 2 steps 32 elements of 8 bits along K.
__device__ inline uint32_t k_major_place(uint32_t smem_address) {
    return static_cast<uint32_t>(k_major_descriptor(smem_address));
}
inline constexpr uint32_t kKMajorForm = uint32_t{1024 >> 4} | uint32_t{1} << 30;

// d[64, 128] (+)= a[64, 32] b[128, 32]^T, both in shared memory, at k_major_place of their first
// rows. d as of wgmma_m64n64k32_e4m3, for 16 blocks of columns. accumulate = 0 starts from zero.
__device__ inline void wgmma_m64n128k32_e4m3(float (&d)[64], uint32_t a, uint32_t b,
                                             int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 at_a, at_b;\nsetp.ne.b32 p, %66, 0;\n"
        "mov.b64 at_a, {%64, %67};\nmov.b64 at_b, {%65, %67};\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "at_a, at_b, p, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63])
        : "r"(a), "r"(b), "r"(accumulate), "n"(kKMajorForm));
}

// Four 8x8 blocks of 16 bits from shared memory, lane l giving the address of row l % 8 of block
// l / 8.
__device__ inline void load_matrix_x4(uint32_t smem_address, uint32_t (&v)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(smem_address)
                 : "memory");
}

// The compiler knows nothing of products that are under way: sums that wgmma_wait has completed
// are read behind this, and not before.
template <int kCount>
__device__ inline void settle(float (&sums)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

}  // namespace mok::arch
