#pragma once

#include <cuda/ptx>

#include <cstdint>

// Barriers in shared memory (mbarrier) between the warps of one CTA.
namespace mok::arch {

namespace ptx = cuda::ptx;

using Barrier = uint64_t;

// Where an object of this CTA's shared memory lies, as instructions name it.
__device__ inline uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void barrier_init(Barrier* bar, uint32_t arrivals) {
    ptx::mbarrier_init(bar, arrivals);
}
// Makes initialised barriers visible to the copy engine; a __syncthreads must follow.
__device__ inline void barrier_init_fence() {
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    ptx::fence_proxy_async(ptx::space_shared);
}
__device__ inline void barrier_arrive(Barrier* bar) {
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, bar);
}
__device__ inline void barrier_arrive_many(Barrier* bar, uint32_t arrivals) {
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, bar, arrivals);
}
__device__ inline void barrier_arrive_expect(Barrier* bar, uint32_t bytes) {
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, bar, bytes);
}
// Whether the phase of this parity is past, without waiting for it.
__device__ inline bool barrier_is_past(Barrier* bar, uint32_t parity) {
    return ptx::mbarrier_test_wait_parity(bar, parity);
}
// The same, but the hardware may let the thread wait a while.
__device__ inline bool barrier_try_wait(Barrier* bar, uint32_t parity) {
    return ptx::mbarrier_try_wait_parity(bar, parity);
}
__device__ inline void barrier_wait(Barrier* bar, uint32_t parity) {
    while (!barrier_try_wait(bar, parity)) {
    }
}

// A position in a ring of `Stages` barriers and the parity that its next use waits for.
template <int Stages>
struct RingState {
    int index = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++index == Stages) {
            index = 0;
            parity ^= 1;
        }
    }
};

// Barrier among the 128 threads of a warpgroup.
__device__ inline void warpgroup_sync(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// Barrier among `Threads` threads of whole warps, with an id of its own.
template <int Threads>
__device__ inline void group_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

// Arrives there without waiting.
template <int Threads>
__device__ inline void group_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

// Moves registers between warpgroups; every warp of the warpgroup executes it.
template <int Registers>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace mok::arch
