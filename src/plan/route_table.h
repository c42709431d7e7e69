#pragma once

#include <cstdint>

#include "plan/problem.h"

namespace mok::plan {

// One expert rank's list of the rows that it works on, the same for all four transfers of a layer.
//
// Slots. The slots of a local expert are its segment: its routes ordered by (home rank, token,
// choice), so by their place in the global batch, padded to a multiple of 128. Segments stand in
// the order of the experts. In closed form, with n(e, h) the routes of home rank h to expert e:
//     segment_begin[e + 1] = segment_begin[e] + round_up(sum over h of n(e, h), 128)
//     slot(route of home h to e) = segment_begin[e] + sum over h' < h of n(e, h')
//                                  + number of earlier routes of h to e.
//
// Pull groups. Slots of one token of another home rank that lie in the same macrobatch on the same
// side of the context's end form a group; the one visited first is its lead. A token is pulled once
// per group, by the lead's task, and written to every slot of the group. A slot of this rank's own
// tokens is a group of its own.
struct RouteTable {
    int32_t* num_tokens;      // [R] tokens of every rank in this call
    int32_t* segment_begin;   // [E_l + 1] first slot of each segment; the last: slots in all
    int32_t* num_slots;       // [1] that last one
    int32_t* home_begin;      // [E_l, R + 1] rows of earlier home ranks in the segment; the last:
                              // the segment's rows
    int32_t* segment_cursor;  // [E_l] scratch of the builder
    int32_t* tile_expert;     // [max_tiles] local expert of each tile
    int32_t* slot_home;       // [max_slots] home rank, -1: padding
    int32_t* slot_route;      // [max_slots] token * K + choice at home
    int32_t* slot_lead;       // [max_slots] lead of the slot's pull group
    int32_t* slot_next;       // [max_slots] next slot of the pull group in visiting order, -1: none
    int32_t* macro_first_expert;  // [max_macrobatches] expert of the macrobatch's first piece
    int32_t* macro_piece_begin;   // [max_macrobatches + 1] pieces of earlier macrobatches
};

MOK_HD inline int32_t segment_rows(const Problem& p, const RouteTable& t, int32_t local_expert) {
    return t.home_begin[local_expert * (p.num_ranks + 1) + p.num_ranks];
}
MOK_HD inline int32_t segment_end(const RouteTable& t, int32_t local_expert) {
    return t.segment_begin[local_expert + 1];
}
MOK_HD inline int32_t num_slots(const RouteTable& t) {
    return *t.num_slots;
}
MOK_HD inline int32_t num_tiles(const RouteTable& t) {
    return num_slots(t) / kTileRows;
}
// Real rows of a tile, 1..128: padding stands at a segment's end only.
MOK_HD inline int32_t tile_rows(const Problem& p, const RouteTable& t, int32_t tile) {
    const int32_t e = t.tile_expert[tile];
    return min_of(kTileRows, t.segment_begin[e] + segment_rows(p, t, e) - tile * kTileRows);
}

// Sizes of a table's arrays in elements of int32_t, and the pointers into one block of that size.
MOK_HD int64_t route_table_ints(const Problem& p);
RouteTable route_table_at(const Problem& p, int32_t* block);

// What a table could not be built from: an id outside [-1, E).
struct BadId {
    bool found;
    int32_t home, token, choice, id;
};

// Builds the table of p.rank. ids[h] is home rank h's [num_tokens[h], K], -1: no expert. Where an
// id is out of range the first in global order is returned and the table is not to be used.
BadId build_route_table(const Problem& p, const int32_t* const* ids, const int32_t* num_tokens,
                        RouteTable& table);

}  // namespace mok::plan
