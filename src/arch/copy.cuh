#pragma once

#include <cuda.h>

#include "arch/barrier.cuh"

// Copies by the bulk copy engine (TMA): tiles through tensor maps, and rows.
namespace mok::arch {

// Tile (col, row) of a matrix, or (col, row, index) of a stack of matrices, into shared memory;
// what lies outside is zero. Counts its bytes at `full`.
__device__ inline void load_tile(void* smem, const CUtensorMap* map, int32_t col, int32_t row,
                                 int32_t index, Barrier* full) {
    const int32_t at[3] = {col, row, index};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, smem, map, at, full);
}
// The same into the shared memory of the first `Ctas` CTAs of the cluster: at this address, and its
// bytes counted at this barrier, of each of them. cuda::ptx of CUDA 13.0 refuses it for sm_103a.
template <int Ctas>
__device__ inline void load_tile_for_all(void* smem, const CUtensorMap* map, int32_t col,
                                         int32_t row, int32_t index, Barrier* full) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(smem)),
        "l"(map), "r"(col), "r"(row), "r"(index), "r"(shared_address(full)),
        "h"(static_cast<uint16_t>((1 << Ctas) - 1))
        : "memory");
}
// A tile of a map of make_tensor_map_by_fours, from row (a multiple of 4) on.
__device__ inline void load_tile_by_fours(void* smem, const CUtensorMap* map, int32_t col,
                                          int32_t row, int32_t index, Barrier* full) {
    const int32_t at[4] = {col, row / 4, 0, index};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, smem, map, at, full);
}
template <int Ctas>
__device__ inline void load_tile_by_fours_for_all(void* smem, const CUtensorMap* map, int32_t col,
                                                  int32_t row, int32_t index, Barrier* full) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(smem)),
        "l"(map), "r"(col), "r"(row / 4), "r"(0), "r"(index), "r"(shared_address(full)),
        "h"(static_cast<uint16_t>((1 << Ctas) - 1))
        : "memory");
}
// The same tile on its way into the L2 cache.
__device__ inline void prefetch_tile(const CUtensorMap* map, int32_t col, int32_t row,
                                     int32_t index) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
                 "r"(col), "r"(row), "r"(index)
                 : "memory");
}
// Tile (col, row, index) from shared memory; what lies outside is not written.
__device__ inline void store_tile(const CUtensorMap* map, int32_t col, int32_t row, int32_t index,
                                  const void* smem) {
    const int32_t at[3] = {col, row, index};
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, at, smem);
}

// The same for what nobody reads soon: the L2 cache drops it first.
__device__ inline void store_tile_once(const CUtensorMap* map, int32_t col, int32_t row,
                                       int32_t index, const void* smem) {
    asm volatile(
        "{\n.reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint "
        "[%0, {%1, %2, %3}], [%4], policy;\n}" ::"l"(map),
        "r"(col), "r"(row), "r"(index), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(smem)))
        : "memory");
}

__device__ inline uint32_t load_shared_word(uint32_t smem_address) {
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(smem_address) : "memory");
    return value;
}
__device__ inline uint16_t load_shared_half(uint32_t smem_address) {
    uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(smem_address) : "memory");
    return value;
}
__device__ inline void store_shared_word(uint32_t smem_address, uint32_t value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem_address), "r"(value) : "memory");
}
// 16 bytes at a multiple of 16.
__device__ inline int4 load_shared_chunk(uint32_t smem_address) {
    int4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(smem_address)
                 : "memory");
    return v;
}
__device__ inline void store_shared_chunk(uint32_t smem_address, int4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(smem_address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
// Two words at a multiple of 8; a byte.
__device__ inline uint2 load_shared_words(uint32_t smem_address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(smem_address)
                 : "memory");
    return v;
}
__device__ inline uint8_t load_shared_byte(uint32_t smem_address) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(smem_address) : "memory");
    return static_cast<uint8_t>(v);
}
__device__ inline void store_global_chunk(void* at, int4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
__device__ inline void store_global_words(void* at, uint32_t a, uint32_t b) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(a), "r"(b) : "memory");
}
// 8 bytes that nobody reads soon: the L2 cache drops them first.
__device__ inline void store_global_words_once(void* at, uint32_t a, uint32_t b) {
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(a), "r"(b) : "memory");
}
// What is read but once: the L2 cache drops it first.
__device__ inline int4 load_global_chunk_once(const void* at) {
    return __ldcs(static_cast<const int4*>(at));
}
// 16 bytes that nobody reads soon, the same way.
__device__ inline void store_global_chunk_once(void* at, int4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
// 16 bytes at byte kOffset behind `at` where kIndex < end, without a branch; kOnce: as
// store_global_chunk_once.
template <int kIndex, int kOffset, bool kOnce = false>
__device__ __forceinline__ void store_global_chunk_below(void* at, int32_t end, int4 v) {
    if constexpr (kOnce) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.gt.s32 p, %1, %2;\n"
            "@p st.global.cs.v4.u32 [%0 + %3], {%4, %5, %6, %7};\n}" ::"l"(at),
            "r"(end), "n"(kIndex), "n"(kOffset), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
            : "memory");
    } else {
        asm volatile(
            "{\n.reg .pred p;\nsetp.gt.s32 p, %1, %2;\n"
            "@p st.global.v4.u32 [%0 + %3], {%4, %5, %6, %7};\n}" ::"l"(at),
            "r"(end), "n"(kIndex), "n"(kOffset), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
            : "memory");
    }
}
// The low 16 bits of a word.
__device__ inline void store_shared_half(uint32_t smem_address, uint32_t value) {
    asm volatile(
        "{\n.reg .b16 low;\ncvt.u16.u32 low, %1;\nst.shared.b16 [%0], low;\n}" ::"r"(smem_address),
        "r"(value)
        : "memory");
}
// The low 8 bits of a word.
__device__ inline void store_shared_byte(uint32_t smem_address, uint32_t value) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(smem_address), "r"(value) : "memory");
}
__device__ inline void store_shared_pair(uint32_t smem_address, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(smem_address), "f"(a), "f"(b) : "memory");
}
// Elements kAt and kAt + 1 of FP32 in global memory where kAt < end, without a branch; elsewhere a
// and b stay.
template <int kAt>
__device__ inline void load_pair_below(const float* global, int32_t end, float& a, float& b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.gt.s32 p, %3, %4;\n@p ld.global.v2.f32 {%0, %1}, [%2 + %5];\n}"
        : "+f"(a), "+f"(b)
        : "l"(global), "r"(end), "n"(kAt), "n"(4 * kAt)
        : "memory");
}
// Bytes of one row: multiples of 16, 16-byte aligned on both sides.
__device__ inline void load_bytes(void* smem, const void* global, uint32_t bytes, Barrier* full) {
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, smem, global, bytes, full);
}
__device__ inline void store_bytes(void* global, const void* smem, uint32_t bytes) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, global, smem, bytes);
}

// Stores of one thread since its last commit form a group.
__device__ inline void commit_stores() {
    ptx::cp_async_bulk_commit_group();
}
// Until at most `Pending` groups still read shared memory.
template <int Pending>
__device__ inline void wait_stores_read() {
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<Pending>{});
}
// Until at most `Pending` groups of this thread are not complete in memory.
template <int Pending = 0>
__device__ inline void wait_stores_done() {
    ptx::cp_async_bulk_wait_group(ptx::n32_t<Pending>{});
}

// Orders this thread's ordinary shared-memory writes before copies that read them.
__device__ inline void fence_shared_to_copies() {
    ptx::fence_proxy_async(ptx::space_shared);
}
// Orders what this thread has acquired in global memory before the copies that it issues next.
// Of global memory only: the fence of all memory waits for every store of the thread as well.
__device__ inline void fence_global_to_copies() {
    ptx::fence_proxy_async(ptx::space_global);
}

}  // namespace mok::arch
