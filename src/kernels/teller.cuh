#pragma once

#include "kernels/layout.cuh"
#include "kernels/waiting.cuh"

// The teller role of a forward: one thread of every CTA makes finished tasks known, so that no
// consumer waits for a release in the middle of its products. The consumers' stores -> task_done ->
// this thread's release -> whoever sees the count.
namespace mok::kernels {

__device__ inline void run_forward_teller(const ForwardParams& p, ForwardSharedMemory& smem) {
    arch::RingState<kQueue> at;
    while (true) {
        arch::barrier_wait(&smem.task_full[at.index], at.parity);
        const TileTask& e = smem.queue[at.index].task;
        if (e.kind < 0) return;
        const plan::Task task{static_cast<plan::TaskKind>(e.kind), e.tile, e.part, -1, -1};
        const bool is_dry = e.is_dry;
        arch::barrier_wait(&smem.task_done[at.index], at.parity);
        if (!is_dry) {
            arrive(p, plan::arrival_of_tile(task));
            if (p.traced) {
                trace_task(p, task, smem.times[at.index].begin, smem.times[at.index].multiplied);
            }
        }
        arch::barrier_arrive(&smem.task_empty[at.index]);
        at.advance();
    }
}

}  // namespace mok::kernels
