#pragma once

#include "plan/problem.h"
#include "plan/route_table.h"

namespace mok::plan {

// Where rows lie and when they are visited. Slots fix positions and the order of sums; the visiting
// order below fixes only when a tile is worked on, and no result depends on it.

// ---- Ring and context -------------------------------------------------------------------------
// A slot's ring row. Rows of one macrobatch never meet; the same row of the next macrobatch does.
MOK_HD inline int32_t ring_row(const Problem& p, int32_t slot) {
    return slot % p.macrobatch_rows;
}
MOK_HD inline bool in_context(const Problem& p, int32_t slot) {
    return slot < p.context_rows;
}
MOK_HD inline int32_t macrobatch_of_tile(const Problem& p, int32_t tile) {
    return tile / (p.macrobatch_rows / kTileRows);
}
MOK_HD inline int32_t num_macrobatches(const Problem& p, const RouteTable& t) {
    return max_of(1, ceil_div(num_slots(t), p.macrobatch_rows));
}

// ---- Visiting order ---------------------------------------------------------------------------
// A run is what is left of a segment when macrobatch bounds and the context's end cut it. Inside a
// run the visit starts at the tile that holds this rank's own first row, goes on to the run's end
// and wraps around, so that ranks do not sweep one home rank together. Visit v and its tile
// therefore lie in the same segment, macrobatch and side of the context.
struct Run {
    int32_t begin, end;  // tiles
    int32_t start;       // the tile visited first
};

// What the runs of one segment depend on, in slots.
struct Segment {
    int32_t begin, end;
    int32_t own;  // first row of this rank's own tokens, or where it would stand
};

MOK_HD inline Segment segment_of(const Problem& p, const RouteTable& t, int32_t local_expert) {
    const int32_t begin = t.segment_begin[local_expert];
    return {begin, segment_end(t, local_expert),
            begin + t.home_begin[local_expert * (p.num_ranks + 1) + p.rank]};
}

// Of a tile of macrobatch `macro`.
MOK_HD inline Run run_in_segment(const Problem& p, const Segment& segment, int32_t tile,
                                 int32_t macro) {
    const int32_t macro_tiles = p.macrobatch_rows / kTileRows;
    const int32_t context_tiles = p.context_rows / kTileRows;
    Run run;
    run.begin = max_of(segment.begin / kTileRows, macro * macro_tiles);
    run.end = min_of(segment.end / kTileRows, (macro + 1) * macro_tiles);
    if (tile < context_tiles) {
        run.end = min_of(run.end, context_tiles);
    } else {
        run.begin = max_of(run.begin, context_tiles);
    }
    const int32_t own = segment.own / kTileRows;
    run.start = own >= run.begin && own < run.end ? own : run.begin;
    return run;
}
MOK_HD inline Run run_in_segment(const Problem& p, const Segment& segment, int32_t tile) {
    return run_in_segment(p, segment, tile, macrobatch_of_tile(p, tile));
}
MOK_HD inline Run run_of_tile(const Problem& p, const RouteTable& t, int32_t tile) {
    return run_in_segment(p, segment_of(p, t, t.tile_expert[tile]), tile);
}

MOK_HD inline int32_t tile_in_run(const Run& run, int32_t visit) {
    const int32_t tile = visit + (run.start - run.begin);
    return tile < run.end ? tile : tile - (run.end - run.begin);
}
MOK_HD inline int32_t tile_at_visit(const Problem& p, const RouteTable& t, int32_t visit) {
    return tile_in_run(run_of_tile(p, t, visit), visit);
}
MOK_HD inline int32_t visit_in_run(const Run& run, int32_t tile) {
    const int32_t visit = tile - (run.start - run.begin);
    return visit >= run.begin ? visit : visit + (run.end - run.begin);
}
MOK_HD inline int32_t visit_of_tile(const Problem& p, const RouteTable& t, int32_t tile) {
    return visit_in_run(run_of_tile(p, t, tile), tile);
}

// ---- Pieces -----------------------------------------------------------------------------------
// A piece is the part of a segment inside one macrobatch: what one weight-gradient task sums before
// the ring moves on. Experts without rows have one empty piece, so that their gradients are
// written.
struct Piece {
    int32_t expert;
    int32_t begin, end;  // slots, multiples of 128; equal for an expert without rows
    bool continues;      // an earlier macrobatch holds the expert's previous piece
    bool ends;           // no later macrobatch holds more of the expert
};

MOK_HD inline int32_t num_pieces(const Problem& p, const RouteTable& t) {
    return t.macro_piece_begin[num_macrobatches(p, t)];
}
MOK_HD inline Piece piece_at(const Problem& p, const RouteTable& t, int32_t macro, int32_t index) {
    const int32_t e = t.macro_first_expert[macro] + index - t.macro_piece_begin[macro];
    const int32_t first = t.segment_begin[e], last = t.segment_begin[e + 1];
    const int64_t macro_begin = int64_t{macro} * p.macrobatch_rows;
    const int64_t macro_end = macro_begin + p.macrobatch_rows;
    Piece piece;
    piece.expert = e;
    piece.begin = first > macro_begin ? first : static_cast<int32_t>(macro_begin);
    piece.end = last < macro_end ? last : static_cast<int32_t>(macro_end);
    piece.continues = first < macro_begin;
    piece.ends = last <= macro_end;
    if (first == last) {
        piece.begin = piece.end = first;
        piece.continues = false;
        piece.ends = true;
    }
    return piece;
}
// The piece that a routed tile belongs to.
MOK_HD inline int32_t piece_of_tile(const Problem& p, const RouteTable& t, int32_t tile) {
    const int32_t macro = macrobatch_of_tile(p, tile);
    return t.macro_piece_begin[macro] + t.tile_expert[tile] - t.macro_first_expert[macro];
}

}  // namespace mok::plan
