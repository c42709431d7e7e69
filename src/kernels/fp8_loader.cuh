#pragma once

#include "arch/copy.cuh"
#include "kernels/fp8_layout.cuh"

// The loader role of the FP8 forward: one thread streams each task's operands and the scales of its
// rows into shared memory, stage by stage, by the bulk copy engine.
namespace mok::kernels::fp8 {

// The operands of a task: A is 128 rows of x or hidden, B two blocks of 128 weight rows.
struct Operands {
    const CUtensorMap *a, *b0, *b1;
    int32_t a_row, b0_row, b1_row, expert;
    int32_t k_blocks;
    const float* a_scales;     // [k_blocks][128]
    const float* b_scales[2];  // [k_blocks] each, null: no such block of rows
};

// Where the scales of a weight's rows [128 block, 128 block + 128) begin, null behind its end.
__device__ inline const float* scales_of(const float* scales, int32_t expert, int32_t outer,
                                         int32_t block, int32_t k_blocks) {
    const int32_t blocks = plan::ceil_div(outer, 128);
    if (block >= blocks) return nullptr;
    return scales + (int64_t{expert} * blocks + block) * k_blocks;
}

__device__ inline Operands operands_of(const Fp8ForwardParams& p, const Fp8ExpertMaps& maps,
                                       const QueueEntry& e) {
    const plan::Problem& problem = p.pass.problem;
    const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
    const int32_t k_blocks =
        plan::ceil_div(gate_up ? problem.hidden : problem.intermediate, kTileK);
    const float* scales = gate_up ? p.ring_x8.scales : p.hidden_scales;
    Operands o{};
    o.a_row = e.row;
    o.a_scales = scales + int64_t{e.row} * k_blocks;
    o.expert = e.expert;
    o.k_blocks = k_blocks;
    if (gate_up) {
        o.a = &maps.x;
        o.b0 = &maps.gate;
        o.b1 = &maps.up;
        o.b0_row = o.b1_row = e.part * plan::kGateUpCols;
        const int32_t outer = problem.intermediate;
        o.b_scales[0] = scales_of(p.gate_weight_scales, e.expert, outer, e.part, k_blocks);
        o.b_scales[1] = scales_of(p.up_weight_scales, e.expert, outer, e.part, k_blocks);
    } else {
        o.a = &maps.hidden_load;
        o.b0 = o.b1 = &maps.down;
        o.b0_row = e.part * plan::kOutCols;
        o.b1_row = o.b0_row + 128;
        for (int i = 0; i < 2; ++i) {
            o.b_scales[i] =
                scales_of(p.down_weight_scales, e.expert, problem.hidden, 2 * e.part + i, k_blocks);
        }
    }
    return o;
}

__device__ inline float scale_at(const float* scales, int32_t k) {
    return scales != nullptr ? __ldg(scales + k) : 0.0f;
}

// Called by one thread.
__device__ inline void run_loader(const Fp8ForwardParams& p, const Fp8ExpertMaps& maps,
                                  SharedMemory& smem) {
    arch::RingState<kQueue> task;
    arch::RingState<kStages> stage;
    stage.parity = 1;  // all stages are empty
    while (true) {
        arch::barrier_wait(&smem.task_full[task.index], task.parity);
        const QueueEntry entry = smem.queue[task.index];
        arch::barrier_arrive(&smem.task_empty[task.index]);
        task.advance();
        if (entry.kind < 0) return;
        const Operands o = operands_of(p, maps, entry);
        // The scheduler acquired what the task reads and handed it on by the queue's barrier.
        arch::fence_global_to_copies();
        // The weights' scales are read a block ahead.
        float weight[2] = {scale_at(o.b_scales[0], 0), scale_at(o.b_scales[1], 0)};
        for (int32_t k = 0; k < o.k_blocks; ++k) {
            arch::barrier_wait(&smem.empty[stage.index], stage.parity);
            arch::Barrier* full = &smem.full[stage.index];
            uint8_t* a = smem.stage[stage.index];
            // Before the arrival, which hands them on.
            for (int i = 0; i < 2; ++i) smem.weight_scale[stage.index][i] = weight[i];
            arch::barrier_arrive_expect(full, kStageBytes + kScaleBytes);
            arch::load_tile(a, o.a, k * kTileK, o.a_row, 0, full);
            arch::load_tile(a + kABytes, o.b0, k * kTileK, o.b0_row, o.expert, full);
            arch::load_tile(a + kABytes + kBBytes / 2, o.b1, k * kTileK, o.b1_row, o.expert, full);
            arch::load_bytes(smem.row_scale[stage.index], o.a_scales + int64_t{k} * plan::kTileRows,
                             kScaleBytes, full);
            if (k + 1 < o.k_blocks) {
                for (int i = 0; i < 2; ++i) weight[i] = scale_at(o.b_scales[i], k + 1);
            }
            stage.advance();
        }
    }
}

}  // namespace mok::kernels::fp8
