#pragma once

#include <cstdint>

#include "kernels/table_count.cuh"

namespace mok::kernels {

// Everything here runs behind the sums of add_counts, with shared.segment_begin set, and writes
// each element of the table from one place.

__device__ inline int32_t global_token(const TableArgs& args, const TableBlock& block,
                                       const LocalRoute& route) {
    return block.first_token[route.home_expert >> kExpertBits] + route.route / args.problem.top_k;
}

// How many of the `count` routes, which begin with a token, to link next: at most kWindow, of whole
// tokens. A token has at most kWindow routes, so it is never 0.
__device__ inline int32_t next_window(const TableArgs& args, const TableBlock& block,
                                      const LocalRoute* routes, int32_t count) {
    if (count <= kWindow) return count;
    const int32_t cut = global_token(args, block, routes[kWindow]);
    int32_t window = 0;
    for (int32_t i = arch::lane_idx(); i < kWindow; i += arch::kWarpSize) {
        const bool whole = global_token(args, block, routes[i]) != cut;
        window += __popc(__ballot_sync(arch::kWholeWarp, whole));
    }
    return window;
}

// Gives each route of a window its slot: its segment's next one, in order. Routes that are to be
// linked go to `places`.
__device__ inline void place_window(const TableArgs& args, const TableBlock& block,
                                    const LocalRoute* routes, int32_t window,
                                    plan::PullPlace* places, int32_t* tokens) {
    const plan::Problem& p = args.problem;
    const TableShared& s = block.shared;
    int32_t* const placed = block.counts_of_warp(arch::warp_idx());
    for (int32_t begin = 0; begin < window; begin += arch::kWarpSize) {
        const int32_t i = begin + arch::lane_idx();
        const bool real = i < window;
        LocalRoute route{0, 0};
        if (real) route = routes[i];
        const int32_t e = static_cast<int32_t>(route.home_expert & ((1u << kExpertBits) - 1));
        const uint32_t same = __match_any_sync(arch::kWholeWarp, real ? e : -1);
        const int32_t earlier = __popc(same & arch::lanes_before());
        int32_t slot = 0;
        if (real) slot = s.segment_begin[e] + s.before[e] + placed[e] + earlier;
        __syncwarp();  // all lanes have read `placed`
        if (real && earlier == 0) placed[e] += __popc(same);
        __syncwarp();  // it is right again
        if (!real) continue;
        const int32_t home = static_cast<int32_t>(route.home_expert >> kExpertBits);
        args.table.slot_home[slot] = home;
        args.table.slot_route[slot] = route.route;
        if (!plan::forms_pull_groups(p, home)) {
            args.table.slot_lead[slot] = slot;
            args.table.slot_next[slot] = -1;
            tokens[i] = kAlone;
            continue;
        }
        const plan::Segment segment{s.segment_begin[e], s.segment_begin[e + 1],
                                    s.segment_begin[e] + s.own[e]};
        places[i] = plan::pull_place(p, segment, slot);
        tokens[i] = global_token(args, block, route);
    }
}

// Writes slot_lead and slot_next of a window's routes that are not alone.
__device__ inline void link_window(const TableArgs& args, int32_t window,
                                   const plan::PullPlace* places, const int32_t* tokens) {
    for (int32_t i = arch::lane_idx(); i < window; i += arch::kWarpSize) {
        if (tokens[i] == kAlone) continue;
        int32_t begin = i, end = i + 1;
        while (begin > 0 && tokens[begin - 1] == tokens[i]) --begin;
        while (end < window && tokens[end] == tokens[i]) ++end;
        const plan::PullLink link = plan::pull_link(places + begin, end - begin, i - begin);
        args.table.slot_lead[places[i].slot] = link.lead;
        args.table.slot_next[places[i].slot] = link.next;
    }
}

// Places and links the `count` routes that the warp found.
__device__ inline void place_routes(const TableArgs& args, const TableBlock& block,
                                    const LocalRoute* routes, int32_t count) {
    plan::PullPlace* const places = block.shared.places + arch::warp_idx() * kWindow;
    int32_t* const tokens = block.shared.tokens + arch::warp_idx() * kWindow;
    for (int32_t begin = 0; begin < count;) {
        const int32_t window = next_window(args, block, routes + begin, count - begin);
        place_window(args, block, routes + begin, window, places, tokens);
        __syncwarp();  // places and tokens: lane -> all lanes
        link_window(args, window, places, tokens);
        __syncwarp();  // read before the next window is written
        begin += window;
    }
}

// home_begin of the home ranks that begin among the block's tokens: count_routes left the part that
// lies in the warp's own range.
__device__ inline void finish_home_begin(const TableArgs& args, const TableBlock& block) {
    const int32_t homes = args.problem.num_ranks, all = block.first_token[homes];
    const int32_t first = static_cast<int32_t>(blockIdx.x) * block.block_tokens();
    for (int32_t h = arch::warp_idx(); h < homes; h += block.num_warps()) {
        const int32_t token = block.first_token[h];
        if (token >= all || token < first || token >= first + block.block_tokens()) continue;
        const int32_t* const earlier = block.counts_of_warp((token - first) / block.warp_tokens);
        for (int32_t e = arch::lane_idx(); e < block.experts; e += arch::kWarpSize) {
            args.table.home_begin[e * (homes + 1) + h] += block.shared.before[e] + earlier[e];
        }
    }
}

// The arrays by home rank and by expert, and home_begin of the ends: the home ranks behind the last
// token, and R. One block's work.
__device__ inline void write_segments(const TableArgs& args, const TableBlock& block) {
    const int32_t homes = args.problem.num_ranks;
    const TableShared& s = block.shared;
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    for (int32_t h = thread; h < homes; h += threads) {
        args.table.num_tokens[h] = block.first_token[h + 1] - block.first_token[h];
    }
    for (int32_t e = thread; e <= block.experts; e += threads) {
        args.table.segment_begin[e] = s.segment_begin[e];
    }
    for (int32_t e = thread; e < block.experts; e += threads) {
        args.table.segment_cursor[e] = s.segment_begin[e] + s.rows[e];
        if (args.expert_rows != nullptr) args.expert_rows[e] = s.rows[e];
        for (int32_t h = homes; h >= 0 && block.first_token[h] == block.first_token[homes]; --h) {
            args.table.home_begin[e * (homes + 1) + h] = s.rows[e];
        }
    }
}

// A table without slots, tiles and pieces. One block's work.
__device__ inline void write_no_routes(const TableArgs& args) {
    const plan::RouteTable& t = args.table;
    const int32_t homes = args.problem.num_ranks, experts = plan::num_local_experts(args.problem);
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    for (int32_t h = thread; h < homes; h += threads) t.num_tokens[h] = 0;
    for (int32_t e = thread; e <= experts; e += threads) t.segment_begin[e] = 0;
    for (int32_t e = thread; e < experts; e += threads) {
        t.segment_cursor[e] = 0;
        if (args.expert_rows != nullptr) args.expert_rows[e] = 0;
    }
    for (int32_t i = thread; i < experts * (homes + 1); i += threads) t.home_begin[i] = 0;
    if (thread != 0) return;
    t.macro_first_expert[0] = 0;
    t.macro_piece_begin[0] = t.macro_piece_begin[1] = 0;
}

// tile_expert and the padding slots of an expert. One block's work.
__device__ inline void write_tiles(const TableArgs& args, const TableBlock& block, int32_t expert) {
    const plan::RouteTable& t = args.table;
    const int32_t begin = block.shared.segment_begin[expert];
    const int32_t end = block.shared.segment_begin[expert + 1];
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    for (int32_t tile = begin / plan::kTileRows + thread; tile < end / plan::kTileRows;
         tile += threads) {
        t.tile_expert[tile] = expert;
    }
    for (int32_t slot = begin + block.shared.rows[expert] + thread; slot < end; slot += threads) {
        t.slot_home[slot] = -1;
        t.slot_route[slot] = -1;
        t.slot_lead[slot] = slot;
        t.slot_next[slot] = -1;
    }
}

// The macrobatches' pieces. One block's work; warp_sums as scan_over_block wants it.
__device__ inline void write_pieces(const TableArgs& args, const TableBlock& block,
                                    int32_t* warp_sums) {
    const plan::Problem& p = args.problem;
    plan::RouteTable shared_table = args.table;
    shared_table.segment_begin = block.shared.segment_begin;
    shared_table.num_slots = block.shared.segment_begin + block.experts;
    const int32_t macros = plan::num_macrobatches(p, shared_table);
    const auto pieces = [&](int32_t m) {
        const auto experts = plan::experts_of_macrobatch(p, shared_table, m);
        args.table.macro_first_expert[m] = experts.first;
        return experts.past - experts.first;
    };
    const auto put = [&](int32_t m, int32_t before) { args.table.macro_piece_begin[m] = before; };
    const int32_t all = arch::scan_over_block(macros, warp_sums, pieces, put);
    if (threadIdx.x == 0) args.table.macro_piece_begin[macros] = all;
}

}  // namespace mok::kernels
