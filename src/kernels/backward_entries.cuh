#pragma once

#include "arch/copy.cuh"
#include "kernels/backward_layout.cuh"

// The queue of a backward's entries as its loader and its teller go through it, one thread each.
namespace mok::kernels {

// load(e) for every entry in its order, when the exchange has given the stages away. The scheduler
// acquired what the task reads and handed it on by the queue's barrier; it lies before the copies
// that load() issues.
template <class Load>
__device__ __forceinline__ void for_each_entry_to_load(BackwardSharedMemory& smem, Load&& load) {
    arch::RingState<kEntries> task;
    arch::barrier_wait(&smem.stages_given, 0);
    while (true) {
        arch::barrier_wait(&smem.entry_full[task.index], task.parity);
        BackwardEntry e = smem.entries[task.index];
        arch::barrier_arrive(&smem.entry_empty[task.index]);
        task.advance();
        if (!e.more) return;
        arch::fence_global_to_copies();
        load(e);
    }
}

// tell(e, times) for every entry in its order, when all that the consumers stored of it is
// complete.
template <class Tell>
__device__ __forceinline__ void for_each_entry_done(BackwardSharedMemory& smem, Tell&& tell) {
    arch::RingState<kEntries> at;
    while (true) {
        arch::barrier_wait(&smem.entry_full[at.index], at.parity);
        const BackwardEntry e = smem.entries[at.index];
        if (!e.more) return;
        arch::barrier_wait(&smem.entry_done[at.index], at.parity);
        tell(e, smem.times[at.index]);
        arch::barrier_arrive(&smem.entry_empty[at.index]);
        at.advance();
    }
}

}  // namespace mok::kernels
