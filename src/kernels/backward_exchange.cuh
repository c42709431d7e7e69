#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/exchange.cuh"

// The exchange role of a backward: d_y and x from their homes, d_x and the router gradients back.
namespace mok::kernels {

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

// Each lead's token row from its home to every slot of its pull group; padding becomes zero.
__device__ inline void pull_rows(const BackwardParams& p, RowMover& mover, const plan::Task& task,
                                 const PulledRows& rows) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t row_bytes = int64_t{problem.hidden} * 2;
    const int lane = threadIdx.x % 32;
    const int32_t begin = task.tile * plan::kTileRows + task.part * plan::kCommRows;
    const int32_t slot = begin + lane, home = t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot;
    const int32_t next = leads ? t.slot_next[slot] : -1;
    const uint8_t* source = nullptr;
    if (leads) {
        source = reinterpret_cast<const uint8_t*>(rows.peer[home]) +
                 t.slot_route[slot] / problem.top_k * row_bytes;
    }
    mover.move(__ballot_sync(~0u, leads), source, [&](int row, auto&& write) {
        write(pulled_row(p, rows, begin + row));
        for (int32_t to = __shfl_sync(~0u, next, row); to >= 0; to = t.slot_next[to]) {
            write(pulled_row(p, rows, to));
        }
    });
    for (uint32_t padding = __ballot_sync(~0u, home < 0); padding != 0; padding &= padding - 1) {
        int4* at = reinterpret_cast<int4*>(pulled_row(p, rows, begin + __ffs(padding) - 1));
        for (int64_t k = lane; k < row_bytes / 16; k += 32) at[k] = int4{0, 0, 0, 0};
    }
}

// Each slot's own router weight beside its row of d_y, 0 in padding.
__device__ inline void pull_weights(const BackwardParams& p, const plan::Task& task) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t first =
        task.tile * plan::kTileRows + task.part * plan::kCommRows + threadIdx.x % 32;
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
    const int32_t slot =
        task.tile * plan::kTileRows + task.part * plan::kCommRows + threadIdx.x % 32;
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

__device__ inline void run_backward_exchange(const BackwardParams& p, SharedMemory& smem) {
    const int lane = threadIdx.x % 32;
    RowMover mover(smem, p.pass.problem.hidden * 2);
    const int64_t count = plan::count(p.pass, plan::Role::Comm);
    while (true) {
        uint32_t i = 0;
        if (lane == 0) i = atomicAdd(&p.tickets[static_cast<int>(plan::Role::Comm)], 1u);
        i = __shfl_sync(~0u, i, 0);
        if (i >= count) return;
        const plan::Task task = plan::decode(p.pass, plan::Role::Comm, i);
        if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Comm, i);
        // Writers of the awaited rows -> a lane (acquire) -> this warp, and its copies by the
        // fence.
        if (!wait_by_warp(p, task)) return;
        arch::fence_global_to_copies();
        const uint64_t begin = p.traced ? arch::nanoseconds() : 0;
        switch (task.kind) {
            case plan::TaskKind::DispatchDY:
                pull_rows(p, mover, task,
                          {plan::RowBuffer::DY, p.peer_d_y, p.ring.d_y, p.kept.d_y});
                pull_weights(p, task);
                break;
            case plan::TaskKind::DispatchX:
                pull_rows(p, mover, task, {plan::RowBuffer::X, p.peer_x, p.ring.x, p.kept.x});
                break;
            default:
                combine_d_x(p, mover, task);
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
