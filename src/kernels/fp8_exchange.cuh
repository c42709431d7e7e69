#pragma once

#include "kernels/exchange.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/fp8_params.h"
#include "kernels/shuffle.cuh"

// Dispatch in FP8: elements by the bulk copy engine as every exchange (exchange.cuh), scales by the
// lanes, for they change their order: by row at home, by tile in the ring.
namespace mok::kernels {

// The scales of a row, a word every 128 columns, from its home (null: zeros) to the slot's place
// and, along the pull group, to all others'.
template <class Word>
struct ScaleCopy {
    const Word* from;
    int32_t slot;  // -1: no row
};

// Lanes l, l + 8, ... have the same row's copy. Neighbouring lanes write neighbouring rows.
template <class Params, class Word = typename Params::ScaleWord>
__device__ inline void move_scales_of_lanes(const Params& p, const ScaleCopy<Word>& mine) {
    const plan::Problem& problem = p.pass.problem;
    const int32_t count = plan::ceil_div(problem.hidden, 128), lane = threadIdx.x % 32;
    constexpr int kLanesPerRow = 32 / plan::kCommRows, kAtOnce = 8;
    if (mine.slot < 0) return;
    for (int32_t first = lane / plan::kCommRows; first < count; first += kLanesPerRow * kAtOnce) {
        Word scale[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int32_t block = first + kLanesPerRow * i;
            scale[i] = mine.from != nullptr && block < count ? mine.from[block] : Word{};
        }
        for (int32_t to = mine.slot; to >= 0;
             to = mine.from == nullptr ? -1 : p.pass.table.slot_next[to]) {
            const int32_t row = plan::ring_row(problem, to), in_tile = row % plan::kTileRows;
            Word* at =
                p.ring_x8.scales + int64_t{row - in_tile} * count + Params::scale_place(in_tile);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int32_t block = first + kLanesPerRow * i;
                if (block < count) at[int64_t{block} * plan::kTileRows] = scale[i];
            }
        }
    }
}

// Lane l has the copy of row l of `tasks` tasks.
template <class Params, class Word = typename Params::ScaleWord>
__device__ inline void move_scales(const Params& p, const ScaleCopy<Word>& copy, int32_t tasks) {
    for (int32_t k = 0; k < tasks; ++k) {
        const int from = k * plan::kCommRows + threadIdx.x % plan::kCommRows;
        move_scales_of_lanes(p, value_of_lane(copy, from));
    }
}

// What the exchange of a forward in FP8 pulls: elements of x. ScaleWord marks these kinds of
// Params.
template <class Params, class = typename Params::ScaleWord>
__device__ inline auto mover_of(const Params& p, SharedMemory& smem) {
    return RowStream<Params>(p, smem);
}
template <class Params, class = typename Params::ScaleWord>
__device__ inline int32_t pulled_bytes(const Params& p) {
    return static_cast<int32_t>(plan::fp8_padded(p.pass.problem.hidden));
}
template <class Params, class = typename Params::ScaleWord>
__device__ inline const uint8_t* pulled_source(const Params& p, plan::TaskKind /*DispatchX*/,
                                               const LaneRow& row) {
    const int64_t token = row.route / p.pass.problem.top_k;
    return p.peer_x8[row.home].elements + token * plan::fp8_padded(p.pass.problem.hidden);
}
template <class Params, class = typename Params::ScaleWord>
__device__ inline uint8_t* pulled_place(const Params& p, plan::TaskKind /*DispatchX*/,
                                        int32_t slot) {
    const plan::Problem& problem = p.pass.problem;
    return p.ring_x8.elements + plan::ring_row(problem, slot) * plan::fp8_padded(problem.hidden);
}
template <class Params, class Word = typename Params::ScaleWord>
__device__ inline void put_beside(const Params& p, const CommClaim& at) {
    const LaneRow& row = at.row;
    ScaleCopy<Word> scales{nullptr, row.is_padding() ? row.slot : -1};
    if (row.leads()) {
        const int64_t token = row.route / p.pass.problem.top_k;
        scales = {
            p.peer_x8[row.home].scales + token * (plan::fp8_padded(p.pass.problem.hidden) / 128),
            row.slot};
    }
    move_scales(p, scales, at.count);
}
// The exchange's own buffer ends with the scales of the stages.
template <class Params, class = typename Params::ScaleWord>
__device__ inline ExchangeRoom own_room_of(const Params& /*p*/, SharedMemory& smem) {
    ExchangeRoom room = own_room(smem);
    room.bytes = fp8::kRowsBytes;
    return room;
}

}  // namespace mok::kernels
