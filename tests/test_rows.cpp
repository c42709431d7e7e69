#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "plan_fixture.h"

namespace mok::plan {
namespace {

using namespace fixture;

void expect_visits_are_a_bijection(const Problem& p, const RouteTable& t) {
    std::set<int32_t> seen;
    for (int32_t visit = 0; visit < num_tiles(t); ++visit) {
        const int32_t tile = tile_at_visit(p, t, visit);
        ASSERT_GE(tile, 0);
        ASSERT_LT(tile, num_tiles(t));
        ASSERT_TRUE(seen.insert(tile).second) << "tile " << tile << " is visited twice";
        ASSERT_EQ(visit_of_tile(p, t, tile), visit);
        ASSERT_EQ(t.tile_expert[tile], t.tile_expert[visit]);
        ASSERT_EQ(tile * 128 / p.macrobatch_rows, visit * 128 / p.macrobatch_rows);
        ASSERT_EQ(tile * 128 < p.context_rows, visit * 128 < p.context_rows);
    }
}

// A run goes round: from its first tile up to its end, then from its begin. Where it holds this
// rank's own first row, it starts there.
void expect_runs_start_at_the_own_rows(const Problem& p, const RouteTable& t) {
    const auto run_key = [&](int32_t tile) {
        return std::tuple(t.tile_expert[tile], tile * 128 / p.macrobatch_rows,
                          tile * 128 < p.context_rows);
    };
    for (int32_t begin = 0, end; begin < num_tiles(t); begin = end) {
        end = begin + 1;
        while (end < num_tiles(t) && run_key(end) == run_key(begin)) ++end;
        const int32_t e = t.tile_expert[begin];
        int32_t before = 0;  // rows of earlier home ranks
        for (int32_t slot = t.segment_begin[e]; slot < segment_end(t, e); ++slot) {
            if (t.slot_home[slot] >= 0 && t.slot_home[slot] < p.rank) ++before;
        }
        const int32_t own = (t.segment_begin[e] + before) / 128;
        const int32_t start = own >= begin && own < end ? own : begin;
        for (int32_t i = 0; i < end - begin; ++i) {
            ASSERT_EQ(tile_at_visit(p, t, begin + i), begin + (start - begin + i) % (end - begin));
        }
    }
}

void expect_pieces_cover_segments(const Problem& p, const RouteTable& t) {
    // By plain loops: what of each expert lies in each macrobatch; an expert without rows once.
    std::set<std::tuple<int32_t, int32_t, int32_t>> expected;  // expert, begin, end
    for (int32_t e = 0; e < num_local_experts(p); ++e) {
        const int32_t first = t.segment_begin[e], last = t.segment_begin[e + 1];
        if (first == last) expected.insert({e, first, last});
        for (int32_t begin = first; begin < last;) {
            const int32_t bound = (begin / p.macrobatch_rows + 1) * p.macrobatch_rows;
            const int32_t end = std::min(bound, last);
            expected.insert({e, begin, end});
            begin = end;
        }
    }
    std::set<std::tuple<int32_t, int32_t, int32_t>> found;
    int32_t previous_expert = -1;
    ASSERT_EQ(t.macro_piece_begin[0], 0);
    for (int32_t macro = 0; macro < num_macrobatches(p, t); ++macro) {
        for (int32_t i = t.macro_piece_begin[macro]; i < t.macro_piece_begin[macro + 1]; ++i) {
            const Piece piece = piece_at(p, t, macro, i);
            ASSERT_TRUE(found.insert({piece.expert, piece.begin, piece.end}).second);
            ASSERT_EQ(piece.continues, piece.expert == previous_expert);
            ASSERT_EQ(piece.continues, piece.begin > t.segment_begin[piece.expert]);
            ASSERT_EQ(piece.ends, piece.end == segment_end(t, piece.expert));
            if (!piece.continues) {
                ASSERT_EQ(piece.expert, previous_expert + 1);
            }
            previous_expert = piece.expert;
            for (int32_t tile = piece.begin / 128; tile < piece.end / 128; ++tile) {
                ASSERT_EQ(piece_of_tile(p, t, tile), i);
                ASSERT_EQ(macrobatch_of_tile(p, tile), macro);
            }
        }
    }
    ASSERT_EQ(found, expected);
    ASSERT_EQ(num_pieces(p, t), static_cast<int32_t>(expected.size()));
    ASSERT_LE(num_pieces(p, t), num_local_experts(p) + max_macrobatches(p) + 1);
    ASSERT_LE(num_macrobatches(p, t), max_macrobatches(p));
}

void expect_rows(const Problem& p, const Batch&, const OwnedTable& owned) {
    expect_visits_are_a_bijection(p, owned.table);
    expect_runs_start_at_the_own_rows(p, owned.table);
    expect_pieces_cover_segments(p, owned.table);
}

TEST(Rows, RandomRoutingsOfEveryNumberOfRanks) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for_each_routing(ranks, 500, 100 + ranks, expect_rows);
        if (HasFailure()) return;
    }
}

// Segments that end on a macrobatch's bound, with experts without rows before, on and after it.
TEST(Rows, ExpertsWithoutRowsOnMacrobatchBounds) {
    for (int32_t pattern = 0; pattern < 729; ++pattern) {  // 0, 1 or 2 tiles for each of 6 experts
        Problem p{};
        p.num_ranks = 1;
        p.num_experts = 6;
        p.top_k = 1;
        p.minibatch_rows = 128;
        Batch batch{{0}, {{}}};
        for (int32_t e = 0, rest = pattern; e < 6; ++e, rest /= 3) {
            batch.ids[0].insert(batch.ids[0].end(), rest % 3 * 128, e);
        }
        p.max_tokens = p.num_tokens = batch.num_tokens[0] =
            static_cast<int32_t>(batch.ids[0].size());
        for (const int32_t tiles : {1, 2, 3, 4}) {
            for (const int32_t context : {0, 1, 3}) {
                p.macrobatch_rows = tiles * 128;
                p.context_rows = context * 128;
                SCOPED_TRACE(describe(p, Routing::Balanced, pattern));
                const OwnedTable owned(p, batch);
                expect_rows(p, batch, owned);
                if (HasFailure()) return;
            }
        }
    }
}

}  // namespace
}  // namespace mok::plan
