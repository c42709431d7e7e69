#pragma once

#include "kernels/backward_entries.cuh"
#include "kernels/backward_layout.cuh"
#include "kernels/next_task.cuh"
#include "kernels/waiting.cuh"
#include "plan/reader.h"

// The scheduler role of a backward: one warp of every CTA claims compute tasks in order, waits
// until their inputs are there and their outputs' rows are free, and hands them to loader and
// consumers. A weight gradient has two waits a tile of its piece, so the lanes wait for a signal
// each.
namespace mok::kernels {

// By one thread of a CTA on Hopper, before its threads meet.
__device__ inline void init_backward_barriers(BackwardSharedMemory& smem) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);  // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], kConsumers);
    }
    for (int i = 0; i < kEntries; ++i) {
        arch::barrier_init(&smem.entry_full[i], 1);               // the scheduler
        arch::barrier_init(&smem.entry_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.entry_empty[i],
                           2 + kConsumers * 128);  // loader, teller, consumers
    }
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, 1);
    arch::barrier_init_fence();
}

// The rest of a wgrad's entry. Without rows nothing is added: the old value stays to the bit, -0
// included; zeros to be stored are the product of one block of zeros. Blocks of k that hold padding
// alone are left out.
__device__ inline void describe_wgrad(const BackwardParams& p, BackwardEntry& e) {
    const WgradTarget t = wgrad_target(p, e);
    e.mode = (e.shared ? p.shared_grads : p.grads).mode;
    e.has_work =
        (t.matrix.wanted || t.bias.wanted) && (e.num_rows > 0 || e.mode == GradMode::Overwrite);
    e.stores = e.has_work && e.ends && t.matrix.wanted;
    e.is_bf16 = t.matrix.is_bf16;
    e.by_stage = e.stores && !e.is_bf16;
    e.at = plan::wgrad_tile(e.kind, t.rows, t.cols, e.part);
    e.has_bias = t.bias.wanted && e.at.col == 0;
    e.k_blocks = e.has_work ? max(1, plan::ceil_div(e.num_rows, kTileK)) : 0;
}

// Of the task that a reader is at.
__device__ inline BackwardEntry backward_entry(const BackwardParams& p,
                                               const plan::ComputeReader& at,
                                               const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& table = p.pass.table;
    BackwardEntry e{};
    e.kind = task.kind;
    e.more = true;
    e.tile = task.tile;
    e.part = task.part;
    e.piece = task.piece;
    e.ends = true;
    if (plan::is_wgrad(task.kind)) {
        e.shared = task.piece < 0;
        e.num_rows = problem.num_tokens;
        if (e.shared) {
            describe_wgrad(p, e);
            return e;
        }
        const plan::Piece piece = plan::piece_at(problem, table, task.macro, task.piece);
        e.expert = piece.expert;
        e.begin = piece.begin;
        e.ring_row = e.begin - at.macro() * problem.macrobatch_rows;
        const int32_t real =
            table.segment_begin[e.expert] + plan::segment_rows(problem, table, e.expert);
        e.num_rows = min(piece.end, real) - piece.begin;
        e.continues = piece.continues;
        e.ends = piece.ends;
        describe_wgrad(p, e);
        return e;
    }
    e.shared = at.is_shared();
    e.k_blocks = task.kind == plan::TaskKind::GateUpDgrad
                     ? 2 * plan::ceil_div(plan::width_of(problem, e.shared), kTileK)
                     : plan::ceil_div(problem.hidden, kTileK);
    if (e.shared) {
        e.begin = (task.tile - p.pass.first_shared_tile) * plan::kTileRows;
        e.ring_row = e.begin;
        e.num_rows = min(plan::kTileRows, problem.num_tokens - e.begin);
    } else {
        e.begin = task.tile * plan::kTileRows;
        e.ring_row = e.begin - at.macro() * problem.macrobatch_rows;
        e.expert = table.tile_expert[task.tile];
        e.num_rows = plan::tile_rows(problem, table, task.tile);
    }
    return e;
}

template <class Tasks>
__device__ inline void run_backward_scheduler(const BackwardParams& p, BackwardSharedMemory& smem,
                                              Tasks&& tasks) {
    const int32_t lane = threadIdx.x % 32;
    arch::RingState<kEntries> at;
    at.parity = 1;  // an empty queue: the first round of waits passes
    plan::ComputeReader reader(p.pass);
    plan::Task waited{plan::TaskKind::Replay, -1, -1, -1, -1};
    const uint64_t start = arch::nanoseconds();
    uint64_t waited_ns = 0;
    bool more = true;
    while (more) {
        uint32_t i = 0;
        if (lane == 0) i = tasks.next_task(p, plan::Role::Compute);
        i = __shfl_sync(~0u, i, 0);
        BackwardEntry entry{};
        if (reader.seek(i)) {
            const plan::Task task = reader.task();
            if (p.disturbance.stall_seed != 0) {
                if (lane == 0) stall(p, plan::Role::Compute, i);
                __syncwarp();
            }
            const uint64_t begin = arch::nanoseconds();
            // Signals only grow: what one task of a piece waited for holds for the next.
            const bool known =
                plan::is_wgrad(task.kind) && task.kind == waited.kind && task.piece == waited.piece;
            const bool met = known || wait_by_warp(p, task, [&](auto&& visit) {
                                 plan::for_each_backward_wait(p.pass, task, visit);
                             });
            if (met) {
                waited = task;
                entry = backward_entry(p, reader, task);
            }
            waited_ns += arch::nanoseconds() - begin;
        }
        more = entry.more;
        arch::barrier_wait(&smem.entry_empty[at.index], at.parity);
        __syncwarp();  // before the arrival that lets the entry go on
        if (lane == 0) {
            smem.entries[at.index] = entry;
            arch::barrier_arrive(&smem.entry_full[at.index]);
        }
        __syncwarp();
        at.advance();
    }
    if (lane != 0) return;
    tasks.end();
    add_times(p, waited_ns, start);
}

// The teller role: one thread of every CTA makes finished tasks known, so that no consumer waits
// for a release in the middle of its products. The consumers' stores -> entry_done -> this thread's
// release -> whoever sees the count.
__device__ inline void run_teller(const BackwardParams& p, BackwardSharedMemory& smem) {
    for_each_entry_done(smem, [&](const BackwardEntry& e, const TaskTimes& times) {
        const plan::Task task{e.kind, e.tile, e.part, -1, e.piece};
        plan::for_each_compute_arrival(task, [&](const plan::Arrival& a) { arrive(p, a); });
        if (p.traced) trace_task(p, task, times.begin, times.multiplied);
    });
}

}  // namespace mok::kernels
