#pragma once

#include "arch/copy.cuh"
#include "kernels/layout.cuh"
#include "kernels/waiting.cuh"

// The exchange role: one warp of every CTA moves rows between ranks through a ring of buffers in
// shared memory, by the bulk copy engine. Lane l knows row l of the task's group; lane 0 issues the
// copies.
namespace mok::kernels {

static_assert(plan::kCommRows == 32, "a lane a row");

class RowMover {
  public:
    __device__ RowMover(SharedMemory& smem, int32_t row_bytes)
        : smem_(smem), row_bytes_(row_bytes), lane_(threadIdx.x % 32) {}

    // Moves the rows whose bit is set in `rows`: from `source`, each lane its own row's, to every
    // address that targets(row, write) passes to write. All lanes call it; lane 0 reads and writes.
    // On return every copy is complete.
    template <class Targets>
    __device__ void move(uint32_t rows, const uint8_t* source, Targets&& targets) {
        const int chunks = (row_bytes_ + kExchangeBytes - 1) / kExchangeBytes;
        Cursor load{rows, 0}, store{rows, 0};
        for (int i = 0; i < kLead; ++i) load_next(load, chunks, source);
        while (store.rows != 0) {
            const int row = __ffs(store.rows) - 1;
            const int64_t offset = int64_t{store.chunk} * kExchangeBytes;
            const uint32_t bytes = bytes_at(store.chunk);
            if (lane_ == 0) arch::barrier_wait(&smem_.row_full[stored_.index], stored_.parity);
            targets(row, [&](uint8_t* to) {
                if (lane_ == 0)
                    arch::store_bytes(to + offset, smem_.exchange[stored_.index], bytes);
            });
            if (lane_ == 0) {
                arch::commit_stores();
                // The next load takes the buffer that was stored one chunk before this one.
                arch::wait_stores_read<kExchangeBuffers - kLead>();
            }
            stored_.advance();
            store.advance(chunks);
            load_next(load, chunks, source);
        }
        if (lane_ == 0) arch::wait_stores_done();
        __syncwarp();
    }

  private:
    static constexpr int kLead = kExchangeBuffers - 1;  // chunks loaded ahead of their stores

    struct Cursor {
        uint32_t rows;  // not done yet
        int chunk;
        __device__ void advance(int chunks) {
            if (++chunk < chunks) return;
            chunk = 0;
            rows &= rows - 1;
        }
    };
    __device__ uint32_t bytes_at(int chunk) const {
        return min(kExchangeBytes, row_bytes_ - chunk * kExchangeBytes);
    }
    __device__ void load_next(Cursor& at, int chunks, const uint8_t* source) {
        if (at.rows == 0) return;
        const uint64_t row_at =
            __shfl_sync(~0u, reinterpret_cast<uint64_t>(source), __ffs(at.rows) - 1);
        if (lane_ == 0) {
            const uint32_t bytes = bytes_at(at.chunk);
            arch::barrier_arrive_expect(&smem_.row_full[loaded_.index], bytes);
            arch::load_bytes(
                smem_.exchange[loaded_.index],
                reinterpret_cast<const uint8_t*>(row_at) + int64_t{at.chunk} * kExchangeBytes,
                bytes, &smem_.row_full[loaded_.index]);
        }
        loaded_.advance();
        at.advance(chunks);
    }

    SharedMemory& smem_;
    int32_t row_bytes_;
    int lane_;
    arch::RingState<kExchangeBuffers> loaded_, stored_;
};

// plan::for_each_dispatch_arrival, a lane a slot. What the warp wrote is complete and lies behind a
// barrier of the warp.
__device__ inline void arrive_dispatched(const PassParams& p, const plan::Task& task) {
    const int lane = threadIdx.x % 32;
    const plan::SignalKind kind = plan::dispatched_signal(task.kind);
    const auto tell = [&p](const plan::Arrival& a) { arrive(p, a); };
    const bool own =
        plan::for_each_slot_arrival(p.pass, kind, plan::first_comm_slot(task) + lane, tell);
    const uint32_t count = __popc(__ballot_sync(~0u, own));
    if (lane == 0 && count > 0) tell({kind, task.tile, count});
}

// DispatchX: each lead's token row from its home to every slot of its pull group, or to the lead's
// alone where the others read that one; padding becomes zero.
__device__ inline void dispatch_x(const ForwardParams& p, RowMover& mover, const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t row_bytes = int64_t{problem.hidden} * 2;
    const int lane = threadIdx.x % 32;
    const int32_t begin = plan::first_comm_slot(task);
    const int32_t slot = begin + lane, home = t.slot_home[slot];
    uint8_t* ring = reinterpret_cast<uint8_t*>(p.ring_x);

    // Own rows are read where they lie, and padding as zeros, when GateUp gathers.
    const bool here = p.gathers_own_rows && home == problem.rank;
    const bool leads = home >= 0 && !here && t.slot_lead[slot] == slot;
    const int32_t next = leads ? t.slot_next[slot] : -1;
    const uint8_t* source = nullptr;
    if (leads) {
        source = reinterpret_cast<const uint8_t*>(p.peer_x[home]) +
                 t.slot_route[slot] / problem.top_k * row_bytes;
    }
    const bool lead_alone = reads_lead_rows(p);
    mover.move(__ballot_sync(~0u, leads), source, [&](int row, auto&& write) {
        write(ring + plan::ring_row(problem, begin + row) * row_bytes);
        if (lead_alone) return;
        for (int32_t to = __shfl_sync(~0u, next, row); to >= 0; to = t.slot_next[to]) {
            write(ring + plan::ring_row(problem, to) * row_bytes);
        }
    });
    if (p.gathers_own_rows) return;
    for (uint32_t padding = __ballot_sync(~0u, home < 0); padding != 0; padding &= padding - 1) {
        const int32_t row = begin + __ffs(padding) - 1;
        int4* at = reinterpret_cast<int4*>(ring + plan::ring_row(problem, row) * row_bytes);
        for (int64_t k = lane; k < row_bytes / 16; k += 32) at[k] = int4{0, 0, 0, 0};
    }
}

// CombineY: the real rows of a task's group to [token * K + choice] at home.
__device__ inline void combine_y(const ForwardParams& p, RowMover& mover, const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t row_bytes = int64_t{problem.hidden} * 2;
    const int lane = threadIdx.x % 32;
    const int32_t begin = plan::first_comm_slot(task);
    const int32_t slot = begin + lane, home = t.slot_home[slot];
    const uint8_t* source =
        reinterpret_cast<const uint8_t*>(p.ring_y) + plan::ring_row(problem, slot) * row_bytes;
    uint8_t* target = nullptr;
    if (home >= 0) {
        target = reinterpret_cast<uint8_t*>(p.peer_combine[home]) + t.slot_route[slot] * row_bytes;
    }
    mover.move(__ballot_sync(~0u, home >= 0), source, [&](int row, auto&& write) {
        write(
            reinterpret_cast<uint8_t*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(target), row)));
    });
}

__device__ inline void run_exchange(const ForwardParams& p, SharedMemory& smem) {
    const int lane = threadIdx.x % 32;
    RowMover mover(smem, p.pass.problem.hidden * 2);
    const int64_t count = plan::count(p.pass, plan::Role::Comm);
    const bool reuses_ring = plan::num_macrobatches(p.pass.problem, p.pass.table) > 1;
    while (true) {
        uint32_t i = 0;
        if (lane == 0) i = atomicAdd(&p.tickets[static_cast<int>(plan::Role::Comm)], 1u);
        i = __shfl_sync(~0u, i, 0);
        if (i >= count) return;
        const plan::Task task = plan::decode(p.pass, plan::Role::Comm, i);
        if (p.disturbance.stall_seed != 0) stall(p, plan::Role::Comm, i);
        // Writers of the awaited rows -> lane 0 (acquire) -> this warp, and its copies by the
        // fence. Rows that Down pushes itself leave nothing to move, and no rows of the ring to
        // give back; in a single macrobatch no row of the ring has been used before.
        const bool pulls = task.kind == plan::TaskKind::DispatchX;
        const bool waits = pulls ? reuses_ring : !p.pushes_directly;
        const bool met = lane != 0 || !waits || wait_for_task(p, task);
        if (!__all_sync(~0u, met)) return;
        arch::fence_global_to_copies();
        const uint64_t begin = p.traced ? arch::nanoseconds() : 0;
        if (pulls) {
            dispatch_x(p, mover, task);
        } else if (!p.pushes_directly) {
            combine_y(p, mover, task);
        }
        // This warp's stores and lane 0's completed copies -> whoever sees the counts.
        if (lane == 0) arch::fence_global_to_copies();
        __syncwarp();
        if (i + 1 != p.disturbance.lost_task) {
            if (pulls) {
                arrive_dispatched(p, task);
            } else if (lane == 0) {
                plan::for_each_arrival(p.pass, task, [&](const plan::Arrival& a) { arrive(p, a); });
            }
        }
        if (p.traced && lane == 0) trace_task(p, task, begin);
        __syncwarp();
    }
}

}  // namespace mok::kernels
