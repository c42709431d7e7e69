#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/exchange.cuh"

// What a backward's exchange moves: d_y with its router weights, and x.
namespace mok::kernels {

__device__ inline auto mover_of(const BackwardParams& p, SharedMemory& smem) {
    return RowStream<BackwardParams>(p, smem);
}
__device__ inline int32_t pulled_bytes(const BackwardParams& p) {
    return p.pass.problem.hidden * 2;
}
__device__ inline const uint8_t* pulled_source(const BackwardParams& p, plan::TaskKind kind,
                                               const LaneRow& row) {
    const plan::Problem& problem = p.pass.problem;
    const Bf16* rows =
        kind == plan::TaskKind::DispatchDY ? p.peer_d_y[row.home] : p.peer_x[row.home];
    return reinterpret_cast<const uint8_t*>(rows +
                                            int64_t{row.route / problem.top_k} * problem.hidden);
}

// Where a slot's row of a buffer lies: in the context or the ring.
struct SlotPlace {
    const RowPointers& rows;
    int64_t row;
};
__device__ inline SlotPlace place_of_slot(const BackwardParams& p, plan::RowBuffer buffer,
                                          int32_t slot) {
    const bool kept = plan::row_is_kept(p.pass, buffer, slot);
    return {kept ? p.kept : p.ring, kept ? slot : plan::ring_row(p.pass.problem, slot)};
}
__device__ inline uint8_t* pulled_place(const BackwardParams& p, plan::TaskKind kind,
                                        int32_t slot) {
    const bool d_y = kind == plan::TaskKind::DispatchDY;
    const SlotPlace to = place_of_slot(p, d_y ? plan::RowBuffer::DY : plan::RowBuffer::X, slot);
    return reinterpret_cast<uint8_t*>((d_y ? to.rows.d_y : to.rows.x) +
                                      to.row * p.pass.problem.hidden);
}

// Each slot's own router weight beside its row of d_y, 0 in padding. The slots of a group are one
// token's.
__device__ inline void put_weight(const BackwardParams& p, int32_t slot, float weight) {
    const SlotPlace to = place_of_slot(p, plan::RowBuffer::DY, slot);
    to.rows.row_weights[to.row] = weight;
}
__device__ inline void put_beside(const BackwardParams& p, const CommClaim& at) {
    if (at.task.kind != plan::TaskKind::DispatchDY) return;
    const plan::RouteTable& t = p.pass.table;
    const LaneRow& row = at.row;
    const float* const weights = row.home < 0 ? nullptr : p.peer_topk_weights[row.home];
    if (row.is_own()) put_weight(p, row.slot, row.home < 0 ? 0.0f : weights[row.route]);
    const GroupSlots group = group_behind(p, row.leads() ? row.next : -1);
    float weight[kListed];  // all of them are on their way at once
    int32_t last = -1;
#pragma unroll
    for (int i = 0; i < kListed; ++i) {
        weight[i] = group.slot[i] < 0 ? 0.0f : weights[t.slot_route[group.slot[i]]];
    }
#pragma unroll
    for (int i = 0; i < kListed; ++i) {
        if (group.slot[i] >= 0) put_weight(p, group.slot[i], weight[i]);
        last = group.slot[i];
    }
    while (last >= 0 && (last = t.slot_next[last]) >= 0) {
        put_weight(p, last, weights[t.slot_route[last]]);
    }
}

template <class Tasks>
__device__ inline void run_backward_exchange(const BackwardParams& p, BackwardSharedMemory& smem,
                                             const Tasks& tasks) {
    run_exchange(p, smem, tasks, arch::Cluster{0, 1});
}

}  // namespace mok::kernels
