#pragma once

#include "kernels/exchange.cuh"
#include "kernels/fp8_params.h"

// Dispatch in FP8: elements by the bulk copy engine as every exchange (exchange.cuh), scales by the
// lanes, for they change their order: by row at home, by tile in the ring.
namespace mok::kernels {

// The scales of a lane's own row, from its home (null: zeros) to the slot's place and, along the
// pull group, to all others'. A lane a row: neighbouring rows of a tile lie beside each other.
__device__ inline void move_scales(const Fp8ForwardParams& p, const float* from, int32_t slot) {
    const plan::Problem& problem = p.pass.problem;
    const int32_t count = plan::ceil_div(problem.hidden, 128);
    constexpr int kAtOnce = 8;
    for (int32_t first = 0; first < count; first += kAtOnce) {
        float scale[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            scale[i] = from != nullptr && first + i < count ? from[first + i] : 0.0f;
        }
        for (int32_t to = slot; to >= 0; to = from == nullptr ? -1 : p.pass.table.slot_next[to]) {
            const int32_t row = plan::ring_row(problem, to), in_tile = row % plan::kTileRows;
            float* at = p.ring_x8.scales + int64_t{row - in_tile} * count + in_tile;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i < count) at[int64_t{first + i} * plan::kTileRows] = scale[i];
            }
        }
    }
}

// DispatchX: each lead's token row from its home, this rank's own too, to every slot of its pull
// group; padding becomes zero.
template <class Memory>
__device__ void dispatch_x(const Fp8ForwardParams& p, RowMover<Memory>& mover,
                           const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t padded = plan::fp8_padded(problem.hidden);
    const int32_t begin = plan::first_comm_slot(task), lane = threadIdx.x % 32;
    const int32_t slot = begin + lane, home = t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot;
    const int32_t next = leads ? t.slot_next[slot] : -1;
    const uint8_t* elements = nullptr;
    const float* scales = nullptr;
    if (leads) {
        const int64_t token = t.slot_route[slot] / problem.top_k;
        elements = p.peer_x8[home].elements + token * padded;
        scales = p.peer_x8[home].scales + token * (padded / 128);
    }
    if (leads || home < 0) move_scales(p, scales, slot);
    mover.move(__ballot_sync(~0u, leads), elements, [&](int row, auto&& write) {
        write(p.ring_x8.elements + plan::ring_row(problem, begin + row) * padded);
        for (int32_t to = __shfl_sync(~0u, next, row); to >= 0; to = t.slot_next[to]) {
            write(p.ring_x8.elements + plan::ring_row(problem, to) * padded);
        }
    });
    for (uint32_t padding = __ballot_sync(~0u, home < 0); padding != 0; padding &= padding - 1) {
        const int32_t row = plan::ring_row(problem, begin + __ffs(padding) - 1);
        int4* at = reinterpret_cast<int4*>(p.ring_x8.elements + row * padded);
        for (int64_t i = lane; i < padded / 16; i += 32) at[i] = int4{0, 0, 0, 0};
    }
}

// Down has sent y to its home rows.
template <class Memory>
__device__ void combine_y(const Fp8ForwardParams&, RowMover<Memory>&, const plan::Task&) {}

}  // namespace mok::kernels
