#pragma once

#include "arch/copy.cuh"
#include "kernels/layout.cuh"

// The queue of a forward's tasks as a loader and an issuer of a Blackwell kernel go through it, one
// thread each.
namespace mok::kernels {

// load(t) for every task in its order, when the exchange has given the stages away. The scheduler
// acquired what the task reads and handed it on by the queue's barrier; it lies before the copies
// that load() issues.
template <class Load>
__device__ __forceinline__ void for_each_task_to_load(ForwardSharedMemory& smem, Load&& load) {
    arch::RingState<kQueue> task;
    arch::barrier_wait(&smem.stages_given, 0);
    while (true) {
        arch::barrier_wait(&smem.task_full[task.index], task.parity);
        const TileTask t = smem.queue[task.index].task;
        if (t.kind < 0) return;
        arch::barrier_arrive(&smem.task_empty[task.index]);
        task.advance();
        arch::fence_global_to_copies();
        load(t);
    }
}

// issue(k_blocks) for every task in its order; k_blocks: TileTask's.
template <class Issue>
__device__ __forceinline__ void for_each_task_to_issue(ForwardSharedMemory& smem, Issue&& issue) {
    arch::RingState<kQueue> task;
    while (true) {
        arch::barrier_wait(&smem.task_full[task.index], task.parity);
        const TileTask& t = smem.queue[task.index].task;
        if (t.kind < 0) return;
        const int32_t k_blocks = t.k_blocks;
        arch::barrier_arrive(&smem.task_empty[task.index]);
        task.advance();
        issue(k_blocks);
    }
}

}  // namespace mok::kernels
