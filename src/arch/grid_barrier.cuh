#pragma once

#include <cstdint>
#include <cuda/atomic>
#include <cuda/ptx>

namespace mok::arch {

// One word in global memory where the thread blocks of a grid meet: low half the blocks that have
// arrived, high half the generation, its top bit set once a wait has expired. Zero at first; every
// meeting leaves it ready for the next one, of this grid or of a later one of any size.
inline constexpr uint64_t kBarrierBroken = uint64_t{1} << 63;

// Called by one thread of each block, after a __syncthreads; all blocks are resident. On true every
// block has arrived, and what their threads wrote before is visible to this thread and, behind a
// further __syncthreads, to its block. On false a block waited longer than bound_ns: then no block
// gets true, and the word stays broken until the host sets it to zero.
//
// Order: each arrival releases its block's writes and acquires those of earlier arrivals (one chain
// of read-modify-writes), so the last one holds all of them when it releases the next generation,
// which the waiters acquire.
__device__ inline bool meet_all_blocks(uint64_t* word, uint32_t num_blocks, uint64_t bound_ns) {
    cuda::atomic_ref<uint64_t, cuda::thread_scope_device> state(*word);
    const uint64_t before = state.fetch_add(1, cuda::memory_order_acq_rel);
    const uint64_t generation = before >> 32;
    if (before & kBarrierBroken) return false;
    if (static_cast<uint32_t>(before) + 1 == num_blocks) {
        // Fails only if a wait has expired in between: nobody else is left to change the word.
        uint64_t all_arrived = before + 1;
        const uint64_t next = ((generation + 1) << 32) & ~kBarrierBroken;
        return state.compare_exchange_strong(all_arrived, next, cuda::memory_order_acq_rel,
                                             cuda::memory_order_acquire);
    }
    const uint64_t start = cuda::ptx::get_sreg_globaltimer();
    while (true) {
        uint64_t now = state.load(cuda::memory_order_acquire);
        if (now & kBarrierBroken) return false;
        if (now >> 32 != generation) return true;
        if (cuda::ptx::get_sreg_globaltimer() - start > bound_ns &&
            state.compare_exchange_strong(now, now | kBarrierBroken, cuda::memory_order_acq_rel,
                                          cuda::memory_order_acquire)) {
            return false;
        }
    }
}

}  // namespace mok::arch
