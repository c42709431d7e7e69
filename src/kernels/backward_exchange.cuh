#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/exchange.cuh"
#include "kernels/row_batches.cuh"

// The exchange role of a backward: d_y and x from their homes, d_x and the router gradients back.
namespace mok::kernels {

// The first of the slots of a task of the exchange, a lane a slot.
__device__ inline int32_t first_slot(const plan::Task& task) {
    return task.tile * plan::kTileRows + task.part * plan::kCommRows;
}

// What a dispatch task moves.
struct PulledRows {
    plan::RowBuffer buffer;
    const Bf16* const (&peer)[plan::kMaxRanks];  // [T_r, H] at every home rank
    Bf16 *ring, *kept;                           // [rows, H]
};

__device__ inline uint8_t* pulled_row(const BackwardParams& p, const PulledRows& rows,
                                      int32_t slot) {
    const bool kept = plan::row_is_kept(p.pass, rows.buffer, slot);
    const int64_t row = kept ? slot : plan::ring_row(p.pass.problem, slot);
    return reinterpret_cast<uint8_t*>((kept ? rows.kept : rows.ring) + row * p.pass.problem.hidden);
}

// Each lead's token row from its home to every slot of its pull group, a lane a slot.
__device__ inline RowCopies find_rows(const BackwardParams& p, const plan::Task& task,
                                      const PulledRows& rows) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t slot = first_slot(task) + threadIdx.x % 32, home = t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot;
    RowCopies copies{__ballot_sync(~0u, leads), nullptr, pulled_row(p, rows, slot), -1};
    if (leads) {
        copies.source = reinterpret_cast<const uint8_t*>(rows.peer[home]) +
                        t.slot_route[slot] / p.pass.problem.top_k *
                            (int64_t{p.pass.problem.hidden} * 2);
        copies.next = t.slot_next[slot];
    }
    return copies;
}

// Padding becomes zero.
__device__ inline void clear_padding(const BackwardParams& p, const plan::Task& task,
                                     const PulledRows& rows) {
    const int lane = threadIdx.x % 32;
    const int32_t begin = first_slot(task);
    const bool padding = p.pass.table.slot_home[begin + lane] < 0;
    for (uint32_t left = __ballot_sync(~0u, padding); left != 0; left &= left - 1) {
        int4* at = reinterpret_cast<int4*>(pulled_row(p, rows, begin + __ffs(left) - 1));
        for (int32_t k = lane; k < p.pass.problem.hidden / 8; k += 32) at[k] = int4{0, 0, 0, 0};
    }
}

// Each slot's own router weight beside its row of d_y, 0 in padding.
__device__ inline void pull_weights(const BackwardParams& p, const plan::Task& task) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t first = first_slot(task) + threadIdx.x % 32;
    if (t.slot_lead[first] != first) return;
    for (int32_t slot = first; slot >= 0; slot = t.slot_next[slot]) {
        const int32_t home = t.slot_home[slot];
        const float w = home < 0 ? 0.0f : p.peer_topk_weights[home][t.slot_route[slot]];
        const bool kept = plan::row_is_kept(p.pass, plan::RowBuffer::DY, slot);
        const int64_t row = kept ? slot : plan::ring_row(p.pass.problem, slot);
        (kept ? p.kept : p.ring).row_weights[row] = w;
    }
}

// CombineDX: d_x rows, unless GateUpDgrad has sent them, and d_w = sum over the partial sums in
// their order, to [token * K + choice] at home.
__device__ inline void combine_d_x(const BackwardParams& p, RowMover& mover,
                                   const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t row_bytes = int64_t{problem.hidden} * 2;
    const int32_t slot = first_slot(task) + threadIdx.x % 32;
    const int32_t home = t.slot_home[slot], row = plan::ring_row(problem, slot);
    const int32_t route = t.slot_route[slot];
    if (home >= 0) {
        const int32_t parts = plan::gate_up_parts(problem, false) + 1;
        const float* partials = p.router_partials + int64_t{row} * parts;
        float sum = 0.0f;
        for (int32_t i = 0; i < parts; ++i) sum += partials[i];
        p.peer_d_topk_weights[home][route] = sum;
    }
    __syncwarp();
    if (p.pushes_directly) return;
    uint8_t* target = nullptr;
    if (home >= 0) target = reinterpret_cast<uint8_t*>(p.peer_combine[home]) + route * row_bytes;
    mover.move(__ballot_sync(~0u, home >= 0),
               reinterpret_cast<const uint8_t*>(p.ring_out) + row * row_bytes,
               [&](int i, auto&& write) {
                   write(reinterpret_cast<uint8_t*>(
                       __shfl_sync(~0u, reinterpret_cast<uint64_t>(target), i)));
               });
}

// The stages belong to the exchange until it gives them to the loader.
__device__ inline void give_stages(BackwardSharedMemory& smem) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arch::barrier_arrive(&smem.stages_given);
}

// Whether a task can begin with the pass: it waits for nobody, and so nobody that waits for the
// stages can keep it from giving them back.
__device__ inline bool pulls_at_once(const BackwardParams& p, const plan::Task& task) {
    bool waits = false;
    plan::for_each_dispatch_wait(p.pass, task, [&](const plan::Wait&) { waits = true; });
    return !waits;
}

__device__ inline void run_backward_exchange(const BackwardParams& p, BackwardSharedMemory& smem) {
    const int lane = threadIdx.x % 32;
    const int32_t row_bytes = p.pass.problem.hidden * 2;
    RowMover mover(smem, row_bytes);
    // Pieces of the sizes that the buffers hold seven and 32 of.
    RowBatches by_buffers(&smem.batch_full, smem.exchange[0], sizeof(smem.exchange), 2048,
                          row_bytes);
    uint32_t parity = 0;
    const int64_t count = plan::count(p.pass, plan::Role::Comm);
    for (bool holds_stages = true;;) {
        uint32_t i = 0;
        if (lane == 0) i = atomicAdd(&p.tickets[static_cast<int>(plan::Role::Comm)], 1u);
        i = __shfl_sync(~0u, i, 0);
        plan::Task task{};
        if (i < count) task = plan::decode(p.pass, plan::Role::Comm, i);
        if (holds_stages && (i >= count || task.kind == plan::TaskKind::CombineDX ||
                             !pulls_at_once(p, task))) {
            give_stages(smem);
            holds_stages = false;
        }
        if (i >= count) return;
        if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Comm, i);
        // Writers of the awaited rows -> a lane (acquire) -> this warp, and its copies by the
        // fence.
        if (!wait_by_warp(p, task)) return;
        arch::fence_global_to_copies();
        const uint64_t begin = p.traced ? arch::nanoseconds() : 0;
        if (task.kind == plan::TaskKind::CombineDX) {
            combine_d_x(p, mover, task);
        } else {
            const bool d_y = task.kind == plan::TaskKind::DispatchDY;
            const PulledRows rows =
                d_y ? PulledRows{plan::RowBuffer::DY, p.peer_d_y, p.ring.d_y, p.kept.d_y}
                    : PulledRows{plan::RowBuffer::X, p.peer_x, p.ring.x, p.kept.x};
            const RowCopies copies = find_rows(p, task, rows);
            const auto next_of = [&](int32_t slot, auto&& write) {
                write(pulled_row(p, rows, slot));
                return p.pass.table.slot_next[slot];
            };
            if (holds_stages) {
                RowBatches(&smem.batch_full, smem.stage[0], sizeof(smem.stage), 6144, row_bytes)
                    .move(copies, parity, next_of);
                give_stages(smem);
                holds_stages = false;
            } else {
                by_buffers.move(copies, parity, next_of);
            }
            clear_padding(p, task, rows);
            if (d_y) pull_weights(p, task);
        }
        // This warp's stores and lane 0's completed copies -> whoever sees the counts.
        __syncwarp();
        if (lane == 0) {
            arch::fence_global_to_copies();
            if (i + 1 != p.disturbance.lost_task) {
                plan::for_each_arrival(p.pass, task, [&](const plan::Arrival& a) { arrive(p, a); });
            }
            if (p.traced) trace_task(p, task, begin);
        }
        __syncwarp();
    }
}

}  // namespace mok::kernels
