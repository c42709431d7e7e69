#pragma once

#include "kernels/comm_claims.cuh"
#include "kernels/pair.cuh"
#include "kernels/row_stream.cuh"

// The exchange role of every pass: one warp of every CTA pulls rows from their homes, through a
// buffer in shared memory, by the bulk copy engine. Results go home straight from the consumers.
//
// What a kind of Params adds (forward_exchange.cuh, backward_exchange.cuh and those in FP8):
//     mover_of         who moves rows; a RowStream, or another with its interface
//     pulled_bytes     of a row, a multiple of 16
//     pulled_source    where a lead's row lies at its home
//     pulled_place     where a slot's row goes
//     put_beside       what comes with the dispatched rows
//     own_room_of      where that is not just the exchange's buffer
namespace mok::kernels {

__device__ inline ExchangeRoom own_room(SharedMemory& smem) {
    return {smem.exchange, sizeof(smem.exchange), false};
}
__device__ inline ExchangeRoom own_room_of(const PassParams& /*p*/, SharedMemory& smem) {
    return own_room(smem);
}
// The stages, until the exchange gives them to the loader.
__device__ inline ExchangeRoom stage_room(SharedMemory& smem) {
    return {smem.stage[0], sizeof(smem.stage), true};
}
__device__ inline void give_stages(SharedMemory& smem, const arch::Cluster& cluster) {
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    arch::barrier_arrive(&smem.stages_given);
    if (is_paired(cluster)) {  // the other loader fills them as well
        arch::cluster_arrive(arch::cluster_address(&smem.stages_given, cluster.rank ^ 1));
    }
}

// The waits of a claim of dispatch tasks, a lane a slot: the tile's, of lane 0, then those of the
// slots of the lane's pull group behind its lead.
template <class Visitor>
__device__ inline void for_each_own_wait(const PassParams& p, const CommClaim& at,
                                         Visitor&& visit) {
    const plan::RowBuffer buffer = plan::dispatched_buffer(p.pass.problem, at.task.kind);
    int32_t next = threadIdx.x % 32 == 0 ? plan::first_comm_slot(at.task) : -1;
    for (bool first = true; first || next >= 0; first = false) {
        if (next >= 0) {
            plan::wait_for_release(p.pass, buffer, at.task.kind, next / plan::kTileRows, visit);
        }
        next = first ? (at.row.leads() ? at.row.next : -1) : p.pass.table.slot_next[next];
    }
}
// Whether a claim can begin with the pass: it waits for nobody, and so nobody that waits for the
// stages can keep it from giving them back.
__device__ inline bool pulls_at_once(const PassParams& p, const CommClaim& at) {
    bool waits = !at.is_dispatch();
    if (!waits) for_each_own_wait(p, at, [&](const plan::Wait&) { waits = true; });
    return !__any_sync(~0u, waits);
}
// Waits for what a claim of dispatch tasks waits for. Before it blocks, what the mover has under
// way is told. False: the wait has expired.
template <class Mover>
__device__ inline bool await_comm(const PassParams& p, const CommClaim& at, Mover& mover) {
    plan::Task of_lane = at.task;  // whose slot waits
    of_lane.part += threadIdx.x % 32 / plan::kCommRows;
    for (bool blocks = false;; blocks = true) {
        bool met = true;
        for_each_own_wait(p, at, [&](const plan::Wait& wait) {
            if (!met) return;
            met = blocks ? wait_signal(p, of_lane, wait)
                         : arch::signal_load(signal_at(p, wait.kind, wait.index)) >= wait.want;
        });
        __syncwarp();
        if (__all_sync(~0u, met)) return true;
        if (blocks) return false;
        mover.finish();
    }
}

// Padding becomes zero.
template <class Params>
__device__ inline void clear_padding(const Params& p, const CommClaim& at) {
    const int32_t chunks = pulled_bytes(p) / 16;
    for (uint32_t left = __ballot_sync(~0u, at.row.is_padding()); left != 0; left &= left - 1) {
        const int32_t slot = plan::first_comm_slot(at.task) + __ffs(left) - 1;
        int4* row = reinterpret_cast<int4*>(pulled_place(p, at.task.kind, slot));
        for (int32_t k = threadIdx.x % 32; k < chunks; k += 32) row[k] = int4{0, 0, 0, 0};
    }
}

// The first claims of a warp go through the stages: until they are done there is nothing to
// multiply.
template <class Params, class Tasks>
__device__ void run_exchange(const Params& p, SharedMemory& smem, const Tasks& tasks,
                             const arch::Cluster& cluster) {
    // In a single macrobatch no row of the ring has been used before.
    const bool reuses_ring = plan::num_macrobatches(p.pass.problem, p.pass.table) > 1;
    // CombineY and CombineDX move nothing. Where nobody waits for them nobody claims them; but a
    // trace has them, and a lost task's number counts them.
    const bool combines = reuses_ring || p.traced || p.disturbance.lost_task != 0;
    CommClaims<Tasks> claims(
        p, tasks, combines ? plan::CommTasks::All : plan::CommTasks::Dispatches, pulled_bytes(p));
    auto mover = mover_of(p, smem);
    mover.use(stage_room(smem));
    bool holds_stages = true;
    for (int32_t n = 0;; ++n) {
        // What was put is on its way meanwhile.
        const CommClaim at = claims.next();
        // What waits for compute tasks must not hold the stages.
        const bool leaves_stages =
            holds_stages && (n == kClaimsOfOne || at.count == 0 || !pulls_at_once(p, at));
        // What moves nothing keeps nobody from the rows before it.
        if (leaves_stages || at.count == 0 || !at.is_dispatch()) mover.finish();
        if (leaves_stages) {
            give_stages(smem, cluster);
            mover.use(own_room_of(p, smem));
            holds_stages = false;
        }
        if (at.count == 0) return;
        if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Comm, at.first);
        // Writers of the awaited rows -> a lane (acquire) -> this warp, and its copies by the
        // fence.
        if (at.is_dispatch() && reuses_ring) {
            if (!await_comm(p, at, mover)) return;
            arch::fence_global_to_copies();
        }
        const uint64_t begin = p.traced ? arch::nanoseconds() : 0;
        if (at.is_dispatch()) {
            const uint8_t* source = nullptr;
            if (at.row.leads()) source = pulled_source(p, at.task.kind, at.row);
            mover.put(at, source, begin);
            put_beside(p, at);
            clear_padding(p, at);
        } else {
            const uint32_t rows = told_rows(p, at, at.row.slot >= 0);
            if (threadIdx.x % 32 == 0) {
                if (rows > 0) arrive(p, {plan::SignalKind::Sent, at.task.tile, rows});
                if (p.traced) trace_tasks(p, at.task, at.count, begin);
            }
        }
    }
}

}  // namespace mok::kernels
