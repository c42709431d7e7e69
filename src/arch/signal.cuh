#pragma once

#include <cstdint>

// Counters in global memory between the CTAs of one GPU.
namespace mok::arch {

__device__ inline uint32_t signal_load(const uint32_t* signal) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(signal) : "memory");
    return value;
}
// A recent value, which says nothing of other memory.
__device__ inline uint32_t signal_peek(const uint32_t* signal) {
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(signal) : "memory");
    return value;
}
// Everything that this thread wrote or waited for before is visible to whoever sees the count.
__device__ inline void signal_add(uint32_t* signal, uint32_t count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(signal), "r"(count) : "memory");
}
__device__ inline uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Multiprocessors of the GPU, or more: their numbers are below.
__device__ inline int32_t num_sms() {
    uint32_t count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return static_cast<int32_t>(count);
}
// The multiprocessor that this thread runs on.
__device__ inline int32_t sm_id() {
    uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return static_cast<int32_t>(sm);
}

}  // namespace mok::arch
