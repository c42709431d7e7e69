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

// Each lead's token row from its home to every slot of its pull group, a lane a slot.
__device__ inline RowCopies find_rows(const BackwardParams& p, const plan::Task& task,
                                      const PulledRows& rows) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t slot = slot_of_lane(task), home = slot < 0 ? -1 : t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot;
    RowCopies copies{__ballot_sync(~0u, leads), nullptr, nullptr, -1};
    if (leads) {
        copies.target = pulled_row(p, rows, slot);
        copies.source =
            reinterpret_cast<const uint8_t*>(rows.peer[home]) +
            t.slot_route[slot] / p.pass.problem.top_k * (int64_t{p.pass.problem.hidden} * 2);
        copies.next = t.slot_next[slot];
    }
    return copies;
}

// Padding becomes zero.
__device__ inline void clear_padding(const BackwardParams& p, const plan::Task& task,
                                     const PulledRows& rows) {
    const int lane = threadIdx.x % 32;
    const int32_t begin = plan::first_comm_slot(task);
    const int32_t slot = slot_of_lane(task);
    const bool padding = slot >= 0 && p.pass.table.slot_home[slot] < 0;
    for (uint32_t left = __ballot_sync(~0u, padding); left != 0; left &= left - 1) {
        int4* at = reinterpret_cast<int4*>(pulled_row(p, rows, begin + __ffs(left) - 1));
        for (int32_t k = lane; k < p.pass.problem.hidden / 8; k += 32) at[k] = int4{0, 0, 0, 0};
    }
}

// Each slot's own router weight beside its row of d_y, 0 in padding.
__device__ inline float weight_of_slot(const BackwardParams& p, int32_t slot) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t home = t.slot_home[slot];
    return home < 0 ? 0.0f : p.peer_topk_weights[home][t.slot_route[slot]];
}
__device__ inline void put_weight(const BackwardParams& p, int32_t slot, float weight) {
    const bool kept = plan::row_is_kept(p.pass, plan::RowBuffer::DY, slot);
    const int64_t row = kept ? slot : plan::ring_row(p.pass.problem, slot);
    (kept ? p.kept : p.ring).row_weights[row] = weight;
}

// CombineDX: d_x rows, unless GateUpDgrad has sent them, and d_w = sum over the partial sums in
// their order, to [token * K + choice] at home.
__device__ inline void combine_d_x(const BackwardParams& p, SharedMemory& smem,
                                   const plan::Task& task, uint32_t& parity) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int32_t slot = slot_of_lane(task), home = slot < 0 ? -1 : t.slot_home[slot];
    const int32_t route = home < 0 ? 0 : t.slot_route[slot];
    if (home >= 0) {
        const int32_t row = plan::ring_row(problem, slot);
        const int32_t parts = plan::gate_up_parts(problem, false) + 1;
        const float* partials = p.router_partials + int64_t{row} * parts;
        float sum = 0.0f;
        for (int32_t i = 0; i < parts; ++i) sum += partials[i];
        p.peer_d_topk_weights[home][route] = sum;
    }
    __syncwarp();
    if (p.pushes_directly) return;
    push_rows(smem, problem, p.ring_out, p.peer_combine, home, slot, route, parity);
}

// Whether a task can begin with the pass: it waits for nobody, and so nobody that waits for the
// stages can keep it from giving them back.
__device__ inline bool pulls_at_once(const BackwardParams& p, const plan::Task& task) {
    bool waits = false;
    for_each_own_wait(p, task, [&](const plan::Wait&) { waits = true; });
    return !__any_sync(~0u, waits);
}
__device__ inline bool wait_for_exchange(const BackwardParams& p, const plan::Task& task) {
    return task.kind == plan::TaskKind::CombineDX ? wait_for_rows(p, task)
                                                  : wait_for_dispatch(p, task);
}
// Makes a task known, a lane a slot. What the warp wrote lies behind a barrier of the warp.
__device__ inline void tell_exchanged(const BackwardParams& p, const plan::Task& task) {
    const int lane = threadIdx.x % 32;
    arch::fence_global_to_copies();
    if (task.kind != plan::TaskKind::CombineDX) {
        arrive_dispatched(p, task);
    } else if (lane == 0) {
        arrive(p, {plan::SignalKind::Sent, task.tile, plan::kCommRows});
    }
}

// DispatchDY or DispatchX, through the stages while the warp still holds them.
__device__ inline void dispatch_rows(const BackwardParams& p, BackwardSharedMemory& smem,
                                     const plan::Task& task, bool by_stages, uint32_t& parity) {
    const bool d_y = task.kind == plan::TaskKind::DispatchDY;
    const PulledRows rows =
        d_y ? PulledRows{plan::RowBuffer::DY, p.peer_d_y, p.ring.d_y, p.kept.d_y}
            : PulledRows{plan::RowBuffer::X, p.peer_x, p.ring.x, p.kept.x};
    const int32_t slot = slot_of_lane(task);
    const RowCopies copies = find_rows(p, task, rows);
    const float weight = d_y && slot >= 0 ? weight_of_slot(p, slot) : 0.0f;
    const auto next_of = [&](int32_t at, auto&& write) {
        write(pulled_row(p, rows, at));
        return p.pass.table.slot_next[at];
    };
    batches_through(smem, by_stages ? stage_room(smem) : own_room(smem), p.pass.problem.hidden * 2)
        .move(copies, parity, next_of);
    if (by_stages) give_stages(smem, arch::Cluster{0, 1});
    clear_padding(p, task, rows);
    if (!d_y || slot < 0 || p.pass.table.slot_lead[slot] != slot) return;
    put_weight(p, slot, weight);
    for (int32_t to = p.pass.table.slot_next[slot]; to >= 0; to = p.pass.table.slot_next[to]) {
        put_weight(p, to, weight_of_slot(p, to));
    }
}

template <class Tasks>
__device__ inline void run_backward_exchange(const BackwardParams& p, BackwardSharedMemory& smem,
                                             const Tasks& tasks) {
    const int lane = threadIdx.x % 32;
    plan::CommReader reader(p.pass);
    uint32_t parity = 0;
    for (bool holds_stages = true;;) {
        uint32_t i = 0;
        if (lane == 0) i = tasks.next_task(p, plan::Role::Comm);
        i = __shfl_sync(~0u, i, 0);
        plan::Task task{plan::TaskKind::CombineDX, -1, -1, -1, -1};
        const bool has = reader.seek(i);
        if (has) task = reader.task();
        const bool combines = task.kind == plan::TaskKind::CombineDX;
        if (holds_stages && (combines || !pulls_at_once(p, task))) {
            give_stages(smem, arch::Cluster{0, 1});
            holds_stages = false;
        }
        if (!has) return;
        if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Comm, i);
        // Writers of the awaited rows -> a lane (acquire) -> this warp, and its copies by the
        // fence.
        if (!wait_for_exchange(p, task)) return;
        arch::fence_global_to_copies();
        const uint64_t begin = p.traced ? arch::nanoseconds() : 0;
        if (combines) {
            combine_d_x(p, smem, task, parity);
        } else {
            dispatch_rows(p, smem, task, holds_stages, parity);
            holds_stages = false;
        }
        // This warp's stores and completed copies -> whoever sees the counts.
        __syncwarp();
        if (i + 1 != p.disturbance.lost_task) tell_exchanged(p, task);
        if (p.traced && lane == 0) trace_task(p, task, begin);
        __syncwarp();
    }
}

}  // namespace mok::kernels
