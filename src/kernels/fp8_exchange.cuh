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

// Lane l has the copy of row l of the task's group. Neighbouring lanes write neighbouring rows.
template <class Params, class Word = typename Params::ScaleWord>
__device__ inline void move_scales(const Params& p, const ScaleCopy<Word>& copy) {
    const plan::Problem& problem = p.pass.problem;
    const int32_t count = plan::ceil_div(problem.hidden, 128), lane = threadIdx.x % 32;
    constexpr int kLanesPerRow = 32 / plan::kCommRows, kAtOnce = 8;
    const ScaleCopy<Word> mine = value_of_lane(copy, lane % plan::kCommRows);
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

// DispatchX: each lead's token row from its home to the rows of the ring of its pull group's slots;
// padding becomes zero.
template <class Params, class Word = typename Params::ScaleWord>
__device__ inline void dispatch_x(const Params& p, SharedMemory& smem, const plan::Task& task,
                                  const ExchangeRoom& room, uint32_t& parity) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int64_t padded = plan::fp8_padded(problem.hidden);
    const auto ring_row = [&](int32_t slot) {
        return p.ring_x8.elements + plan::ring_row(problem, slot) * padded;
    };
    const int32_t slot = slot_of_lane(task), home = slot < 0 ? -1 : t.slot_home[slot];
    const bool leads = home >= 0 && t.slot_lead[slot] == slot, padding = slot >= 0 && home < 0;
    RowCopies copies{__ballot_sync(~0u, leads), nullptr, nullptr, -1};
    ScaleCopy<Word> scales{nullptr, padding ? slot : -1};
    if (leads) {
        const int64_t token = t.slot_route[slot] / problem.top_k;
        copies.source = p.peer_x8[home].elements + token * padded;
        copies.target = ring_row(slot);
        copies.next = t.slot_next[slot];
        scales = {p.peer_x8[home].scales + token * (padded / 128), slot};
    }
    move_scales(p, scales);
    // The exchange's own buffer ends with the scales.
    const ExchangeRoom rows_room =
        room.at == smem.exchange ? ExchangeRoom{room.at, fp8::kRowsBytes, room.piece_bytes} : room;
    batches_through(smem, rows_room, static_cast<int32_t>(padded))
        .move(copies, parity, [&](int32_t at, auto&& write) {
            write(ring_row(at));
            return t.slot_next[at];
        });
    for (uint32_t rows = __ballot_sync(~0u, padding); rows != 0; rows &= rows - 1) {
        int4* at = reinterpret_cast<int4*>(ring_row(plan::first_comm_slot(task) + __ffs(rows) - 1));
        for (int64_t k = threadIdx.x % 32; k < padded / 16; k += 32) at[k] = int4{0, 0, 0, 0};
    }
}

}  // namespace mok::kernels
