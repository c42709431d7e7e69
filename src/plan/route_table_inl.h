#pragma once

#include "plan/problem.h"
#include "plan/route_table.h"
#include "plan/rows.h"

namespace mok::plan {

// The formulas that every builder of a route table shares.

MOK_HD inline int32_t padded_rows(int32_t rows) {
    return ceil_div(rows, kTileRows) * kTileRows;
}

// ---- Pieces -----------------------------------------------------------------------------------
// Number of the `count` ascending slots that lie at or before `last`.
MOK_HD inline int32_t count_up_to(const int32_t* slots, int32_t count, int64_t last) {
    int32_t low = 0, high = count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (slots[middle] <= last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
// Experts whose segments end at or before a slot, and experts whose segments begin before it.
MOK_HD inline int32_t experts_ending_by(const Problem& p, const RouteTable& t, int64_t slot) {
    return count_up_to(t.segment_begin + 1, num_local_experts(p), slot);
}
MOK_HD inline int32_t experts_begun_by(const Problem& p, const RouteTable& t, int64_t slot) {
    return count_up_to(t.segment_begin, num_local_experts(p), slot - 1);
}

// The experts [first, past) that have a piece in a macrobatch. An expert without rows that stands
// on a bound belongs to the macrobatch before it. Of the table, segment_begin is read.
struct MacroExperts {
    int32_t first, past;
};
MOK_HD inline MacroExperts experts_of_macrobatch(const Problem& p, const RouteTable& t,
                                                 int32_t macro) {
    const int64_t begin = int64_t{macro} * p.macrobatch_rows, end = begin + p.macrobatch_rows;
    MacroExperts experts{0, num_local_experts(p)};
    if (macro > 0) experts.first = experts_ending_by(p, t, begin);
    if (macro < num_macrobatches(p, t) - 1) {
        experts.past = max_of(experts_begun_by(p, t, end), experts_ending_by(p, t, end));
    }
    return experts;
}

// ---- Pull groups ------------------------------------------------------------------------------
// At home a row costs no link: every slot is its own lead and reads where the token lies.
MOK_HD inline bool forms_pull_groups(const Problem& p, int32_t home) {
    return home != p.rank;
}

// A slot, when it is visited, and the number that the slots of its macrobatch on its side of the
// context's end have in common.
struct PullPlace {
    int32_t slot, visit, group;
};
MOK_HD inline PullPlace pull_place(const Problem& p, const Segment& segment, int32_t slot) {
    const int32_t tile = slot / kTileRows;
    const int32_t visit = visit_in_run(run_in_segment(p, segment, tile), tile);
    return {slot, visit * kTileRows + slot % kTileRows,
            2 * macrobatch_of_tile(p, tile) + (in_context(p, slot) ? 1 : 0)};
}

// slot_lead and slot_next of the i-th of the `count` slots that one token has on this rank.
struct PullLink {
    int32_t lead, next;
};
MOK_HD inline PullLink pull_link(const PullPlace* places, int32_t count, int32_t i) {
    const PullPlace own = places[i];
    PullLink link{own.slot, -1};
    int32_t lead_visit = own.visit, next_visit = 0;
    for (int32_t j = 0; j < count; ++j) {
        const PullPlace other = places[j];
        if (other.group != own.group) continue;
        if (other.visit < lead_visit) {
            link.lead = other.slot;
            lead_visit = other.visit;
        }
        if (other.visit > own.visit && (link.next < 0 || other.visit < next_visit)) {
            link.next = other.slot;
            next_visit = other.visit;
        }
    }
    return link;
}

}  // namespace mok::plan
