#include <gtest/gtest.h>

#include "pass_fixture.h"
#include "plan/memory_map.h"
#include "plan/validate.h"
#include "plan_fixture.h"

// Index arithmetic past 2^31, with route tables of real size but none of the buffers.
namespace mok::plan {
namespace {

using namespace fixture;

constexpr int64_t k2To31 = int64_t{1} << 31;

// kimi-k2.7 with every route of 8 ranks on one: 4.2 million rows of 7168.
TEST(PlanLimits, BuffersOfMoreThanTwoToThe31Elements) {
    LayerShape shape;
    shape.hidden = 7168;
    shape.intermediate = 2048;
    shape.num_experts = 384;
    shape.top_k = 8;
    ASSERT_TRUE(problems_of(shape, Tuning{}, 8, 65536).empty());

    Problem p{};
    p.num_ranks = 8;
    p.rank = 5;
    p.hidden = 7168;
    p.intermediate = 2048;
    p.num_experts = 384;
    p.top_k = 8;
    p.max_tokens = p.num_tokens = 65536;
    p.minibatch_rows = 2432;
    p.macrobatch_rows = 131072;
    p.context_rows = static_cast<int32_t>(max_slots(p));
    Rng rng(1);
    const Batch batch = make_batch(p, Routing::OneRank, std::vector<int32_t>(8, 65536), rng);
    const OwnedTable owned(p, batch);
    ASSERT_FALSE(owned.bad.found);
    const int64_t slots = num_slots(owned.table);
    ASSERT_GE(slots, int64_t{8} * 65536 * 8);
    ASSERT_LE(slots, max_slots(p));

    const ContextMap context = context_map(p, slots, p.num_tokens, true);
    ASSERT_GT(slots * p.intermediate, k2To31);
    EXPECT_EQ(context.total, 5 * slots * 2048 * 2);  // multiples of 256 all

    const Pass pass{PassKind::Forward, p, owned.table};
    const int64_t tiles = slots / 128;
    EXPECT_EQ(count(pass, Role::Compute), tiles * (16 + 28));
    EXPECT_EQ(count(pass, Role::Comm), tiles * (16 + 16));
    const Task last = decode(pass, Role::Compute, count(pass, Role::Compute) - 1);
    EXPECT_EQ(last.kind, TaskKind::Down);
    EXPECT_EQ(last.part, 27);
    // Forward passes end with the first macrobatch.
    EXPECT_LT(last.tile, 1024);
    EXPECT_GE(decode(pass, Role::Compute, 0).tile, (tiles - 1) / 1024 * 1024);
}

// A program of more than 2^31 tasks: one expert, one choice, very wide rows, a shared expert.
TEST(PlanLimits, ProgramsOfMoreThanTwoToThe31Tasks) {
    LayerShape shape;
    shape.hidden = int64_t{1} << 26;
    shape.intermediate = 8;
    shape.shared_intermediate = 8;
    shape.num_experts = 1;
    shape.top_k = 1;
    const int32_t tokens = 8000 * 128;
    for (const std::string& problem : problems_of(shape, Tuning{}, 1, tokens)) {
        ADD_FAILURE() << problem;
    }

    Problem p{};
    p.num_ranks = 1;
    p.hidden = 1 << 26;
    p.intermediate = p.shared_intermediate = 8;
    p.num_experts = p.top_k = 1;
    p.max_tokens = p.num_tokens = tokens;
    p.minibatch_rows = p.macrobatch_rows = 1024 * 1024;
    const Batch batch{{tokens}, {std::vector<int32_t>(tokens, 0)}};
    const OwnedTable owned(p, batch);
    const int64_t cols = 1 << 18, per_expert = 8000 * (1 + cols);
    const Pass forward{PassKind::Forward, p, owned.table};
    ASSERT_EQ(count(forward, Role::Compute), 2 * per_expert);
    ASSERT_GT(2 * per_expert, k2To31);

    const auto expect = [&](int64_t i, TaskKind kind, int32_t tile, int64_t part) {
        const Task task = decode(forward, Role::Compute, i);
        EXPECT_EQ(task.kind, kind) << i;
        EXPECT_EQ(task.tile, tile) << i;
        EXPECT_EQ(task.part, part) << i;
    };
    expect(0, TaskKind::GateUp, max_tiles(p), 0);
    // Groups of 12 tiles, the last one of 8.
    expect(8000 + 12 * 5 + 3, TaskKind::Down, max_tiles(p) + 3, 5);
    expect(per_expert - 1, TaskKind::Down, max_tiles(p) + 7999, cols - 1);
    expect(per_expert, TaskKind::GateUp, 0, 0);
    expect(per_expert + 8000 + 7992 * cols + 8 * (cols - 1), TaskKind::Down, 7992, cols - 1);
    expect(2 * per_expert - 1, TaskKind::Down, 7999, cols - 1);

    const Pass backward{PassKind::Backward, p, owned.table};
    // d_gate and d_up: 1 x 2^18 tiles each, d_down 2^19 x 1. All rows are replayed (C = 0).
    EXPECT_EQ(count(backward, Role::Compute), 2 * (per_expert + 4 * cols) + 8000);
    const Task last = decode(backward, Role::Compute, count(backward, Role::Compute) - 1);
    EXPECT_EQ(last.kind, TaskKind::UpWgrad);
    EXPECT_EQ(last.part, cols - 1);
    EXPECT_EQ(last.piece, 0);
}

// Tall weight gradients: 147456 rows of one expert of 512 x 1024 in one ring or many.
TEST(PlanLimits, TallWeightGradients) {
    Problem p{};
    p.num_ranks = 1;
    p.hidden = 1024;
    p.intermediate = 512;
    p.num_experts = p.top_k = 1;
    p.max_tokens = p.num_tokens = 147456;
    p.minibatch_rows = 256;
    const Batch batch{{147456}, {std::vector<int32_t>(147456, 0)}};
    for (const int32_t ring : {128, 4096, 147456, 1 << 20}) {
        p.macrobatch_rows = ring;
        const OwnedTable owned(p, batch);
        const Pass pass{PassKind::Backward, p, owned.table};
        const int64_t pieces = (147456 + ring - 1) / ring;
        ASSERT_EQ(num_pieces(p, owned.table), pieces);
        // 4 replay, 2 down-dgrad and 4 gate-up-dgrad tiles a row tile; 16 + 16 + 16 wgrad tiles.
        EXPECT_EQ(count(pass, Role::Compute), 1152 * 10 + pieces * 48) << ring;
    }
}

}  // namespace
}  // namespace mok::plan
