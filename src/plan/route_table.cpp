#include "plan/route_table.h"

#include "plan/route_table_inl.h"
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
    t.num_slots = t.segment_begin + experts;
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
        t.segment_begin[e + 1] = t.segment_begin[e] + padded_rows(begin[p.num_ranks]);
        for (int32_t tile = t.segment_begin[e] / kTileRows; tile < segment_end(t, e) / kTileRows;
             ++tile) {
            t.tile_expert[tile] = e;
        }
    }
}

void place_pieces(const Problem& p, RouteTable& t) {
    t.macro_piece_begin[0] = 0;
    for (int32_t m = 0; m < num_macrobatches(p, t); ++m) {
        const MacroExperts experts = experts_of_macrobatch(p, t, m);
        t.macro_first_expert[m] = experts.first;
        t.macro_piece_begin[m + 1] = t.macro_piece_begin[m] + experts.past - experts.first;
    }
}

// Sets lead and next of the `count` slots that one token has on this rank.
void link_token(const Problem& p, RouteTable& t, const int32_t* slots, int32_t count) {
    PullPlace places[kMaxTopK];
    for (int32_t i = 0; i < count; ++i) {
        const int32_t e = t.tile_expert[slots[i] / kTileRows];
        places[i] = pull_place(p, segment_of(p, t, e), slots[i]);
    }
    for (int32_t i = 0; i < count; ++i) {
        const PullLink link = pull_link(places, count, i);
        t.slot_lead[slots[i]] = link.lead;
        t.slot_next[slots[i]] = link.next;
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

    for (int32_t slot = 0; slot < num_slots(t); ++slot) {
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
            if (forms_pull_groups(p, h)) link_token(p, t, slots, count);
        }
    }
    return {};
}

}  // namespace mok::plan
