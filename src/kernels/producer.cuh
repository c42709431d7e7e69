#pragma once

#include "arch/copy.cuh"
#include "kernels/forward_params.h"
#include "kernels/layout.cuh"

// The producer role: one thread of every CTA streams each task's operands, stage by stage.
namespace mok::kernels {

// The operands of a task: A is 128 rows of x or hidden, B two blocks of 128 weight rows.
struct Operands {
    const CUtensorMap *a, *b0, *b1;
    int32_t a_row, b0_row, b1_row, expert;
    int32_t k_blocks;
};

__device__ inline Operands operands_of(const plan::Problem& problem, const ExpertMaps& maps,
                                       const QueueEntry& e) {
    const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
    const int32_t width = plan::width_of(problem, e.shared);
    const int32_t row = e.part * (gate_up ? plan::kGateUpCols : plan::kOutCols);
    if (gate_up) {
        return {&maps.x, &maps.gate, &maps.up, e.row,
                row,     row,        e.expert, plan::ceil_div(problem.hidden, kTileK)};
    }
    return {&maps.hidden_load,
            &maps.down,
            &maps.down,
            e.row,
            row,
            row + 128,
            e.expert,
            plan::ceil_div(width, kTileK)};
}

__device__ inline void run_producer(const plan::Problem& problem, const ExpertMaps& routed,
                                    const ExpertMaps& shared, SharedMemory& smem) {
    arch::RingState<kStages> stage;
    arch::RingState<kQueue> task;
    stage.parity = 1;  // all stages are empty
    while (true) {
        arch::barrier_wait(&smem.task_full[task.index], task.parity);
        const QueueEntry entry = smem.queue[task.index];
        arch::barrier_arrive(&smem.task_empty[task.index]);
        task.advance();
        if (entry.kind < 0) return;
        const Operands o = operands_of(problem, entry.shared ? shared : routed, entry);
        // The scheduler acquired what the task reads and handed it on by the queue's barrier.
        arch::fence_global_to_copies();
        for (int32_t k = 0; k < o.k_blocks; ++k) {
            arch::barrier_wait(&smem.empty[stage.index], stage.parity);
            arch::Barrier* full = &smem.full[stage.index];
            uint8_t* a = smem.stage[stage.index];
            arch::barrier_arrive_expect(full, kStageBytes);
            arch::load_tile(a, o.a, k * kTileK, o.a_row, 0, full);
            arch::load_tile(a + kABytes, o.b0, k * kTileK, o.b0_row, o.expert, full);
            arch::load_tile(a + kABytes + kBBytes / 2, o.b1, k * kTileK, o.b1_row, o.expert, full);
            stage.advance();
        }
    }
}

}  // namespace mok::kernels
