#pragma once

#include <cstdint>

#include "plan/memory_map.h"
#include "plan/pass.h"

namespace mok::plan {

// Rows that move between this rank and each home rank in a pass. A row is H elements of BF16, 2H
// bytes, or x in FP8 with its scales. Not counted: the w of every slot that a d_y row is written
// to, and the router gradient (on a GPU its partial sums) that leaves with a d_x row, 4 bytes each.
//
// The entry of this rank itself counts local reads and writes: they cross no link, and its tokens
// are read once for every slot, under both kinds of copies.

MOK_HD inline int64_t bf16_row_bytes(const Problem& p) {
    return int64_t{p.hidden} * kBytesBF16;
}
// Of a row that a pass's DispatchX or DispatchDY pulls.
MOK_HD inline int64_t pulled_row_bytes(const Problem& p, PassKind kind) {
    return pulls_fp8(p, kind) ? fp8_row_bytes(p.hidden) : bf16_row_bytes(p);
}

enum class Copies {
    OnePerGroup,  // what the passes do: one copy of a token per pull group (route_table.h)
    OnePerRoute,  // what it would be without groups: one copy per choice
};

// rows[h] += rows that `dispatch` (DispatchX or DispatchDY) pulls from home rank h, [R].
MOK_HD inline void add_rows_pulled(const Pass& pass, TaskKind dispatch, Copies copies,
                                   int64_t* rows) {
    const VisitRange tiles = routed_range(pass, dispatch);
    for (int32_t slot = tiles.begin * kTileRows; slot < tiles.end * kTileRows; ++slot) {
        const int32_t home = pass.table.slot_home[slot];
        if (home < 0) continue;
        if (copies == Copies::OnePerGroup && pass.table.slot_lead[slot] != slot) continue;
        ++rows[home];
    }
}

// rows[h] += rows that `combine` (CombineY or CombineDX) pushes to home rank h, [R]: one per route.
MOK_HD inline void add_rows_pushed(const Pass& pass, TaskKind combine, int64_t* rows) {
    const VisitRange tiles = routed_range(pass, combine);
    for (int32_t slot = tiles.begin * kTileRows; slot < tiles.end * kTileRows; ++slot) {
        const int32_t home = pass.table.slot_home[slot];
        if (home >= 0) ++rows[home];
    }
}

}  // namespace mok::plan
