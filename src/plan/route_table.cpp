#include "plan/route_table.h"

#include "plan/rows.h"

namespace mok::plan {

int64_t route_table_ints(const Problem& p) {
    const int64_t experts = num_local_experts(p), macros = max_macrobatches(p);
    return p.num_ranks + (experts + 1) + experts * (p.num_ranks + 1) + experts + max_tiles(p) +
           4 * max_slots(p) + macros + (macros + 1);
}

RouteTable route_table_at(const Problem& p, int32_t* block) {
    const int64_t experts = num_local_experts(p), macros = max_macrobatches(p);
    int32_t* next = block;
    const auto take = [&next](int64_t count) {
        int32_t* at = next;
        next += count;
        return at;
    };
    RouteTable t;
    t.num_tokens = take(p.num_ranks);
    t.segment_begin = take(experts + 1);
    t.home_begin = take(experts * (p.num_ranks + 1));
    t.segment_cursor = take(experts);
    t.tile_expert = take(max_tiles(p));
    t.slot_home = take(max_slots(p));
    t.slot_route = take(max_slots(p));
    t.slot_lead = take(max_slots(p));
    t.slot_next = take(max_slots(p));
    t.macro_first_expert = take(macros);
    t.macro_piece_begin = take(macros + 1);
    return t;
}

namespace {

// Number of routes of every home rank to every local expert, into home_begin[e][h + 1].
BadId count_routes(const Problem& p, const int32_t* const* ids, RouteTable& t) {
    const int32_t experts = num_local_experts(p), first = first_expert(p, p.rank);
    const int32_t stride = p.num_ranks + 1;
    for (int32_t i = 0; i < experts * stride; ++i) t.home_begin[i] = 0;
    for (int32_t h = 0; h < p.num_ranks; ++h) {
        for (int32_t route = 0; route < t.num_tokens[h] * p.top_k; ++route) {
            const int32_t id = ids[h][route];
            if (id < -1 || id >= p.num_experts) {
                return {true, h, route / p.top_k, route % p.top_k, id};
            }
            const int32_t e = id - first;
            if (e >= 0 && e < experts) ++t.home_begin[e * stride + h + 1];
        }
    }
    return {};
}

void place_segments(const Problem& p, RouteTable& t) {
    const int32_t stride = p.num_ranks + 1;
    t.segment_begin[0] = 0;
    for (int32_t e = 0; e < num_local_experts(p); ++e) {
        int32_t* begin = t.home_begin + e * stride;
        for (int32_t h = 0; h < p.num_ranks; ++h) begin[h + 1] += begin[h];
        t.segment_begin[e + 1] =
            t.segment_begin[e] + ceil_div(begin[p.num_ranks], kTileRows) * kTileRows;
        for (int32_t tile = t.segment_begin[e] / kTileRows; tile < segment_end(t, e) / kTileRows;
             ++tile) {
            t.tile_expert[tile] = e;
        }
    }
}

// Experts whose segments end at or before a slot, and experts whose segments begin before it.
int32_t experts_ending_by(const Problem& p, const RouteTable& t, int64_t slot) {
    int32_t e = 0;
    while (e < num_local_experts(p) && segment_end(t, e) <= slot) ++e;
    return e;
}
int32_t experts_begun_by(const Problem& p, const RouteTable& t, int64_t slot) {
    int32_t e = 0;
    while (e < num_local_experts(p) && t.segment_begin[e] < slot) ++e;
    return e;
}

// A macrobatch's pieces are consecutive experts. An expert without rows that stands on a bound
// belongs to the macrobatch before it.
void place_pieces(const Problem& p, RouteTable& t) {
    const int32_t macros = num_macrobatches(p, t);
    t.macro_piece_begin[0] = 0;
    for (int32_t m = 0; m < macros; ++m) {
        const int64_t begin = int64_t{m} * p.macrobatch_rows, end = begin + p.macrobatch_rows;
        const int32_t first = m == 0 ? 0 : experts_ending_by(p, t, begin);
        const int32_t past =
            m == macros - 1 ? num_local_experts(p)
                            : max_of(experts_begun_by(p, t, end), experts_ending_by(p, t, end));
        t.macro_first_expert[m] = first;
        t.macro_piece_begin[m + 1] = t.macro_piece_begin[m] + past - first;
    }
}

bool same_pull_group(const Problem& p, int32_t a, int32_t b) {
    return a / p.macrobatch_rows == b / p.macrobatch_rows && in_context(p, a) == in_context(p, b);
}
int32_t visit_of_slot(const Problem& p, const RouteTable& t, int32_t slot) {
    return visit_of_tile(p, t, slot / kTileRows) * kTileRows + slot % kTileRows;
}

// Sets lead and next of the `count` slots that one token has on this rank.
void link_token(const Problem& p, RouteTable& t, const int32_t* slots, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
        const int32_t visit = visit_of_slot(p, t, slots[i]);
        int32_t lead = slots[i], lead_visit = visit, next = -1, next_visit = 0;
        for (int32_t j = 0; j < count; ++j) {
            if (j == i || !same_pull_group(p, slots[i], slots[j])) continue;
            const int32_t other = visit_of_slot(p, t, slots[j]);
            if (other < lead_visit) lead = slots[j], lead_visit = other;
            if (other > visit && (next < 0 || other < next_visit)) {
                next = slots[j], next_visit = other;
            }
        }
        t.slot_lead[slots[i]] = lead;
        t.slot_next[slots[i]] = next;
    }
}

}  // namespace

BadId build_route_table(const Problem& p, const int32_t* const* ids, const int32_t* num_tokens,
                        RouteTable& t) {
    for (int32_t h = 0; h < p.num_ranks; ++h) t.num_tokens[h] = num_tokens[h];
    const BadId bad = count_routes(p, ids, t);
    if (bad.found) return bad;
    place_segments(p, t);
    place_pieces(p, t);

    for (int32_t slot = 0; slot < num_slots(p, t); ++slot) {
        t.slot_home[slot] = -1;
        t.slot_route[slot] = -1;
        t.slot_lead[slot] = slot;
        t.slot_next[slot] = -1;
    }
    // Walking the routes in global order meets each segment's slots in slot order.
    const int32_t experts = num_local_experts(p), first = first_expert(p, p.rank);
    for (int32_t e = 0; e < experts; ++e) t.segment_cursor[e] = t.segment_begin[e];
    for (int32_t h = 0; h < p.num_ranks; ++h) {
        for (int32_t token = 0; token < t.num_tokens[h]; ++token) {
            int32_t slots[kMaxTopK];
            int32_t count = 0;
            for (int32_t choice = 0; choice < p.top_k; ++choice) {
                const int32_t route = token * p.top_k + choice;
                const int32_t e = ids[h][route] - first;
                if (ids[h][route] < 0 || e < 0 || e >= experts) continue;
                const int32_t slot = t.segment_cursor[e]++;
                t.slot_home[slot] = h;
                t.slot_route[slot] = route;
                slots[count++] = slot;
            }
            // At home a row costs no link: every slot is its own lead and reads where the token
            // lies.
            if (h != p.rank) link_token(p, t, slots, count);
        }
    }
    return {};
}

}  // namespace mok::plan
