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

// The rows that a dispatch task moves, a lane a slot: each lead's token row from its home to every
// slot of its pull group.
struct Pull {
    uint32_t leads;  // lanes
    const uint8_t* source;
    int32_t slot, next;  // the lead's own slot, the next one of its group or -1
};
__device__ inline Pull find_pull(const BackwardParams& p, const plan::Task& task,
                                 const PulledRows& rows) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t slot =
        task.tile * plan::kTileRows + task.part * plan::kCommRows + threadIdx.x % 32;
    const int32_t home = t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot;
    const uint8_t* source = nullptr;
    if (leads) {
        source = reinterpret_cast<const uint8_t*>(rows.peer[home]) +
                 t.slot_route[slot] / p.pass.problem.top_k * int64_t{p.pass.problem.hidden} * 2;
    }
    return {__ballot_sync(~0u, leads), source, slot, leads ? t.slot_next[slot] : -1};
}

// Row by row through the exchange's buffers.
__device__ inline void pull_by_buffers(const BackwardParams& p, RowMover& mover, const Pull& pull,
                                       const PulledRows& rows) {
    const int32_t begin = pull.slot - threadIdx.x % 32;
    mover.move(pull.leads, pull.source, [&](int row, auto&& write) {
        write(pulled_row(p, rows, begin + row));
        for (int32_t to = __shfl_sync(~0u, pull.next, row); to >= 0;
             to = p.pass.table.slot_next[to]) {
            write(pulled_row(p, rows, to));
        }
    });
}

// Many whole rows at once through the stages, a lane a row, while no products need them. On return
// every copy is complete.
__device__ inline void pull_by_stages(const BackwardParams& p, BackwardSharedMemory& smem,
                                      const Pull& pull, const PulledRows& rows) {
    const int lane = threadIdx.x % 32;
    const int32_t row_bytes = p.pass.problem.hidden * 2, total = __popc(pull.leads);
    const int32_t rows_at_once = sizeof(smem.stage) / row_bytes;
    const int32_t position = __popc(pull.leads & ((1u << lane) - 1));
    uint32_t parity = 0;
    for (int32_t first = 0; first < total; first += rows_at_once) {
        const int32_t in_batch = position - first;
        const bool mine =
            (pull.leads >> lane & 1) != 0 && in_batch >= 0 && in_batch < rows_at_once;
        uint8_t* buffer = smem.stage[0] + in_batch * row_bytes;
        if (lane == 0) {
            arch::barrier_arrive_expect(&smem.batch_full,
                                        min(rows_at_once, total - first) * row_bytes);
        }
        __syncwarp();
        if (mine) arch::load_bytes(buffer, pull.source, row_bytes, &smem.batch_full);
        arch::barrier_wait(&smem.batch_full, parity);
        parity ^= 1;
        if (mine) {
            arch::store_bytes(pulled_row(p, rows, pull.slot), buffer, row_bytes);
            for (int32_t to = pull.next; to >= 0; to = p.pass.table.slot_next[to]) {
                arch::store_bytes(pulled_row(p, rows, to), buffer, row_bytes);
            }
            arch::commit_stores();
            arch::wait_stores_read<0>();
        }
        __syncwarp();
    }
    arch::wait_stores_done();
    arch::fence_global_to_copies();
}

// Padding becomes zero.
__device__ inline void clear_padding(const BackwardParams& p, const Pull& pull,
                                     const PulledRows& rows) {
    const int lane = threadIdx.x % 32;
    const bool padding = p.pass.table.slot_home[pull.slot] < 0;
    for (uint32_t left = __ballot_sync(~0u, padding); left != 0; left &= left - 1) {
        int4* at = reinterpret_cast<int4*>(pulled_row(p, rows, pull.slot - lane + __ffs(left) - 1));
        for (int32_t k = lane; k < p.pass.problem.hidden / 8; k += 32) at[k] = int4{0, 0, 0, 0};
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

// The stages belong to the exchange until it gives them to the loader.
__device__ inline void give_stages(BackwardSharedMemory& smem) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arch::barrier_arrive(&smem.stages_given);
}

// Whether a task can begin with the pass: it waits for nobody, and so nobody that waits for the
// stages can keep it from giving them back.
__device__ inline bool pulls_at_once(const BackwardParams& p, const plan::Task& task) {
    bool waits = p.pass.problem.hidden * 2 > int32_t{sizeof(SharedMemory::stage)};
    plan::for_each_dispatch_wait(p.pass, task, [&](const plan::Wait&) { waits = true; });
    return !waits;
}

__device__ inline void run_backward_exchange(const BackwardParams& p, BackwardSharedMemory& smem) {
    const int lane = threadIdx.x % 32;
    RowMover mover(smem, p.pass.problem.hidden * 2);
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
            const Pull pull = find_pull(p, task, rows);
            if (holds_stages) {
                pull_by_stages(p, smem, pull, rows);
                give_stages(smem);
                holds_stages = false;
            } else {
                pull_by_buffers(p, mover, pull, rows);
            }
            clear_padding(p, pull, rows);
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
