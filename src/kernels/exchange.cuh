#pragma once

#include "kernels/forward_params.h"
#include "kernels/layout.cuh"
#include "kernels/next_task.cuh"
#include "kernels/pair.cuh"
#include "kernels/row_batches.cuh"
#include "kernels/waiting.cuh"
#include "plan/reader.h"

// The exchange role: one warp of every CTA moves rows between ranks, and this rank's own rows into
// the ring, through a buffer in shared memory, by the bulk copy engine. Lane l knows row l of the
// task's group; a group is small, so that the first tiles are whole soon.
namespace mok::kernels {

static_assert(plan::kCommRows <= 32, "a lane a row");

// Of a communication task: this lane's slot, -1 where it has none.
__device__ inline int32_t slot_of_lane(const plan::Task& task) {
    const int32_t lane = threadIdx.x % 32;
    return lane < plan::kCommRows ? plan::first_comm_slot(task) + lane : -1;
}

// Where rows pass through, in pieces of at most piece_bytes.
struct ExchangeRoom {
    uint8_t* at;
    int32_t bytes, piece_bytes;
};
// Pieces of the size that the exchange's own buffer holds seven of.
__device__ inline ExchangeRoom own_room(SharedMemory& smem) {
    return {smem.exchange, sizeof(smem.exchange), 2048};
}
// The stages, until the exchange gives them to the loader: of the size that they hold 32 of.
__device__ inline ExchangeRoom stage_room(SharedMemory& smem) {
    return {smem.stage[0], sizeof(smem.stage), 6144};
}
__device__ inline void give_stages(SharedMemory& smem, const arch::Cluster& cluster) {
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    arch::barrier_arrive(&smem.stages_given);
    if (is_paired(cluster)) {  // the other loader fills them as well
        arch::cluster_arrive(arch::cluster_address(&smem.stages_given, cluster.rank ^ 1));
    }
}

__device__ inline RowBatches batches_through(SharedMemory& smem, const ExchangeRoom& room,
                                             int32_t row_bytes) {
    return RowBatches(&smem.batch_full, room.at, room.bytes, room.piece_bytes, row_bytes);
}

// The waits of a dispatch task, a lane a slot, and of lane 0 the tile's.
template <class Visitor>
__device__ inline void for_each_own_wait(const PassParams& p, const plan::Task& task,
                                         Visitor&& visit) {
    const plan::RowBuffer buffer = plan::dispatched_buffer(p.pass.problem, task.kind);
    // The tile itself, then the slots of the lane's pull group behind its lead.
    const int32_t slot = slot_of_lane(task);
    const bool leads = slot >= 0 && p.pass.table.slot_lead[slot] == slot;
    int32_t next = threadIdx.x % 32 == 0 ? plan::first_comm_slot(task) : -1;
    for (bool first = true; first || next >= 0; first = false) {
        if (next >= 0) {
            plan::wait_for_release(p.pass, buffer, task.kind, next / plan::kTileRows, visit);
        }
        next = first ? (leads ? p.pass.table.slot_next[slot] : -1) : p.pass.table.slot_next[next];
    }
}
__device__ inline bool wait_for_dispatch(const PassParams& p, const plan::Task& task) {
    bool met = true;
    for_each_own_wait(p, task, [&](const plan::Wait& wait) {
        if (met) met = wait_signal(p, task, wait);
    });
    __syncwarp();
    return __all_sync(~0u, met);
}

// The wait of a combine task.
__device__ inline bool wait_for_rows(const PassParams& p, const plan::Task& task) {
    const bool first = threadIdx.x % 32 == 0;
    const bool met =
        !first ||
        wait_signal(p, task, plan::wait_for_routed(p.pass, plan::SignalKind::OutReady, task.tile));
    return __all_sync(~0u, met);
}

// plan::for_each_dispatch_arrival, a lane a slot. What the warp wrote is complete and lies behind a
// barrier of the warp.
__device__ inline void arrive_dispatched(const PassParams& p, const plan::Task& task) {
    const plan::SignalKind kind = plan::dispatched_signal(task.kind);
    const auto tell = [&p](const plan::Arrival& a) { arrive(p, a); };
    const int32_t slot = slot_of_lane(task);
    const bool own = slot >= 0 && plan::for_each_slot_arrival(p.pass, kind, slot, tell);
    const uint32_t count = __popc(__ballot_sync(~0u, own));
    if (threadIdx.x % 32 == 0 && count > 0) tell({kind, task.tile, count});
}

// A lane's row of the ring to row `route` of its home rank's [T_r * K, H], where it has a home.
__device__ inline void push_rows(SharedMemory& smem, const plan::Problem& problem, const Bf16* ring,
                                 Bf16* const (&peer)[plan::kMaxRanks], int32_t home, int32_t slot,
                                 int32_t route, uint32_t& parity) {
    const int64_t row_bytes = int64_t{problem.hidden} * 2;
    RowCopies copies{__ballot_sync(~0u, home >= 0), nullptr, nullptr, -1};
    if (home >= 0) {
        copies.source =
            reinterpret_cast<const uint8_t*>(ring) + plan::ring_row(problem, slot) * row_bytes;
        copies.target = reinterpret_cast<uint8_t*>(peer[home]) + route * row_bytes;
    }
    batches_through(smem, own_room(smem), problem.hidden * 2)
        .move(copies, parity, [](int32_t, auto&&) { return -1; });
}

// DispatchX: each lead's token row from its home to the rows of the ring of its pull group's slots;
// padding becomes zero.
__device__ inline void dispatch_x(const ForwardParams& p, SharedMemory& smem,
                                  const plan::Task& task, const ExchangeRoom& room,
                                  uint32_t& parity) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t row_bytes = int64_t{problem.hidden} * 2;
    const auto ring_row = [&](int32_t slot) {
        return reinterpret_cast<uint8_t*>(p.ring_x) + plan::ring_row(problem, slot) * row_bytes;
    };
    const int32_t slot = slot_of_lane(task), home = slot < 0 ? -1 : t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot;
    RowCopies copies{__ballot_sync(~0u, leads), nullptr, nullptr, -1};
    if (leads) {
        copies.source = reinterpret_cast<const uint8_t*>(p.peer_x[home]) +
                        t.slot_route[slot] / problem.top_k * row_bytes;
        copies.target = ring_row(slot);
        copies.next = t.slot_next[slot];
    }
    batches_through(smem, room, problem.hidden * 2)
        .move(copies, parity, [&](int32_t at, auto&& write) {
            write(ring_row(at));
            return t.slot_next[at];
        });
    const bool padding = slot >= 0 && home < 0;
    for (uint32_t rows = __ballot_sync(~0u, padding); rows != 0; rows &= rows - 1) {
        int4* at = reinterpret_cast<int4*>(ring_row(plan::first_comm_slot(task) + __ffs(rows) - 1));
        for (int64_t k = threadIdx.x % 32; k < row_bytes / 16; k += 32) at[k] = int4{0, 0, 0, 0};
    }
}

// CombineY: the real rows of a task's group to [token * K + choice] at home.
__device__ inline void combine_y(const ForwardParams& p, SharedMemory& smem, const plan::Task& task,
                                 uint32_t& parity) {
    const plan::RouteTable& t = p.pass.table;
    const int32_t slot = slot_of_lane(task), home = slot < 0 ? -1 : t.slot_home[slot];
    push_rows(smem, p.pass.problem, p.ring_y, p.peer_combine, home, slot,
              home < 0 ? 0 : t.slot_route[slot], parity);
}

// The first tasks of a warp go through the stages, in one batch each: until they are done there is
// nothing to multiply.
inline constexpr int kTasksThroughStages = 2;

// Params: ForwardParams, or a kind of them with a dispatch_x of its own.
template <class Params, class Tasks>
__device__ void run_exchange(const Params& p, SharedMemory& smem, const Tasks& tasks,
                             const arch::Cluster& cluster) {
    const int lane = threadIdx.x % 32;
    plan::CommReader reader(p.pass);
    uint32_t parity = 0;
    const bool reuses_ring = plan::num_macrobatches(p.pass.problem, p.pass.table) > 1;
    // A task that waits for compute tasks must not hold the stages.
    int stage_tasks = reuses_ring ? 0 : kTasksThroughStages;
    if (stage_tasks == 0) give_stages(smem, cluster);
    while (true) {
        uint32_t i = 0;
        if (lane == 0) i = tasks.next_task(p, plan::Role::Comm);
        i = __shfl_sync(~0u, i, 0);
        const bool has = reader.seek(i);
        const plan::Task task = has ? reader.task() : plan::Task{plan::TaskKind::CombineY, 0, 0};
        if (stage_tasks > 0 && task.kind == plan::TaskKind::CombineY) {
            give_stages(smem, cluster);
            stage_tasks = 0;
        }
        if (!has) return;
        if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Comm, i);
        // Writers of the awaited rows -> a lane (acquire) -> this warp, and its copies by the
        // fence. Rows that Down pushes itself leave nothing to move, and no rows of the ring to
        // give back; in a single macrobatch no row of the ring has been used before.
        const bool pulls = task.kind == plan::TaskKind::DispatchX;
        if (pulls ? reuses_ring && !wait_for_dispatch(p, task)
                  : !p.pushes_directly && !wait_for_rows(p, task)) {
            return;
        }
        arch::fence_global_to_copies();
        const uint64_t begin = p.traced ? arch::nanoseconds() : 0;
        if (pulls) {
            dispatch_x(p, smem, task, stage_tasks > 0 ? stage_room(smem) : own_room(smem), parity);
            if (stage_tasks > 0 && --stage_tasks == 0) give_stages(smem, cluster);
        } else if (!p.pushes_directly) {
            combine_y(p, smem, task, parity);
        }
        // This warp's stores and lane 0's completed copies -> whoever sees the counts.
        if (lane == 0) arch::fence_global_to_copies();
        __syncwarp();
        if (i + 1 != p.disturbance.lost_task) {
            if (pulls) {
                arrive_dispatched(p, task);
            } else if (lane == 0) {
                arrive(p, {plan::SignalKind::Sent, task.tile, plan::kCommRows});
            }
        }
        if (p.traced && lane == 0) trace_task(p, task, begin);
        __syncwarp();
    }
}

}  // namespace mok::kernels
