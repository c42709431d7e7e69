#pragma once

#include "kernels/layout.cuh"
#include "kernels/waiting.cuh"

// The scheduler role: one thread of every CTA claims compute tasks in order, waits until their
// inputs are there and their outputs' rows are free, and hands them to loaders and consumers.
namespace mok::kernels {

__device__ inline QueueEntry queue_entry(const ForwardParams& p, const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    QueueEntry e{};
    e.kind = static_cast<int32_t>(task.kind);
    e.part = task.part;
    e.tile = task.tile;
    e.shared = plan::is_shared_tile(problem, task.tile);
    const int32_t slot = task.tile * plan::kTileRows;
    if (e.shared) {
        e.row = (task.tile - plan::max_tiles(problem)) * plan::kTileRows;
        e.rows = plan::min_of(plan::kTileRows, problem.num_tokens - e.row);
        e.saved_row = p.saves_context ? e.row : -1;
    } else {
        e.expert = p.pass.table.tile_expert[task.tile];
        e.row = plan::ring_row(problem, slot);
        e.rows = plan::tile_rows(problem, p.pass.table, task.tile);
        e.saved_row = p.saves_context && plan::in_context(problem, slot) ? slot : -1;
    }
    return e;
}

__device__ inline void run_scheduler(const ForwardParams& p, SharedMemory& smem) {
    arch::RingState<kQueue> at;
    at.parity = 1;  // an empty queue: the first round of waits passes
    const int64_t count = plan::count(p.pass, plan::Role::Compute);
    const uint64_t start = arch::nanoseconds();
    uint64_t waited = 0;
    plan::PhaseTasks phase{};
    bool more = true;
    while (more) {
        const uint32_t i = atomicAdd(&p.tickets[static_cast<int>(plan::Role::Compute)], 1u);
        QueueEntry entry{};
        entry.kind = -1;
        if (i < count) {
            const plan::Task task = plan::decode_compute(p.pass, i, phase);
            if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Compute, i);
            const uint64_t begin = arch::nanoseconds();
            if (wait_for_task(p, task)) entry = queue_entry(p, task);
            waited += arch::nanoseconds() - begin;
        }
        more = entry.kind >= 0;
        arch::barrier_wait(&smem.task_empty[at.index], at.parity);
        smem.queue[at.index] = entry;
        arch::barrier_arrive(&smem.task_full[at.index]);
        at.advance();
    }
    add_times(p, waited, start);
}

}  // namespace mok::kernels
