#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "plan/make_problem.h"
#include "plan_fixture.h"
#include "unit_order_model.h"

// The backward of Fp8Block on Hopper has units beside its tasks (src/kernels/fp8_unit_order.h). Its
// CTAs' roles may run in any order, the pass ends and makes every unit once.
namespace mok::plan {
namespace {

using namespace fixture;
using kernels::UnitKind, kernels::unit_share, kernels::units_of_tile;

constexpr PassKind kBackwards[] = {PassKind::Backward, PassKind::BackwardInput, PassKind::Wgrad};

// Of a random problem: rings of a few tiles, contexts, kept x, experts without rows.
Problem routed_part(Problem p) {
    p.precision = Precision::Fp8Block;
    p.shared_intermediate = 0;
    return p;
}

TEST(Fp8UnitOrder, EveryOrderOfTheRolesEnds) {
    int64_t units = 0;
    for (uint64_t seed = 0; seed < 40; ++seed) {
        const auto ranks = static_cast<int32_t>(1 + seed % 3);
        for_each_routing(
            ranks, 900, 4200 + seed,
            [&](const Problem& random, const Batch& batch, const OwnedTable&) {
                const Problem p = routed_part(random);
                const OwnedTable owned(p, batch);
                for (const PassKind kind : kBackwards) {
                    const Pass pass(kind, p, owned.table);
                    const int ctas = seed % 4 == 0 ? 1 : static_cast<int>(1 + seed % 7);
                    SCOPED_TRACE(testing::Message()
                                 << "pass kind " << static_cast<int>(kind) << ", " << ctas);
                    mok_test::UnitOrderModel model(pass, ctas, seed % 2 == 0 ? 1 : 4, seed);
                    ASSERT_EQ(model.run(), "");
                    units += model.units_made();
                }
            });
        if (HasFailure()) return;
    }
    EXPECT_GT(units, 10000);
}

// The shape that a slice of kimi-k2.7 has, on the multiprocessors of an H200.
TEST(Fp8UnitOrder, ALargeLayerEnds) {
    LayerShape shape;
    shape.hidden = 7168;
    shape.intermediate = 2048;
    shape.num_experts = 12;
    shape.top_k = 8;
    shape.precision = Precision::Fp8Block;
    constexpr int kTokens = 8192, kCtas = 132;
    for (const int64_t ring : {131072, 16384}) {
        Tuning tuning;
        tuning.macrobatch_rows = ring;
        Problem p = make_problem(shape, tuning, 1, 0, kTokens);
        p.num_tokens = kTokens;
        p.minibatch_rows = minibatch_rows(p, kCtas, PassKind::Backward);
        Rng rng(7);
        const Batch batch = make_batch(p, Routing::Balanced, {kTokens}, rng);
        const OwnedTable owned(p, batch);
        const Pass pass(PassKind::Backward, p, owned.table);
        mok_test::UnitOrderModel model(pass, kCtas, 1, 11);
        EXPECT_EQ(model.run(), "") << "a ring of " << ring << " rows";
    }
}

TEST(Fp8UnitOrder, ATilesUnitsHaveEveryBlockOnce) {
    for (const int32_t cols : {8, 128, 136, 1024, 1032, 2048, 7168}) {
        Problem p{};
        p.num_ranks = p.num_experts = p.top_k = 1;
        p.hidden = p.intermediate = cols;
        const RouteTable table{};
        const Pass pass(PassKind::Backward, p, table);
        for (const UnitKind kind : {UnitKind::DY, UnitKind::Made, UnitKind::X}) {
            std::map<kernels::Operand, int32_t> blocks;
            for (int32_t share = 0; share < units_of_tile(pass, kind); ++share) {
                const kernels::UnitShare unit = unit_share(p, kind, share);
                EXPECT_EQ(kernels::kind_of(unit.operand), kind);
                EXPECT_EQ(unit.first_block, blocks[unit.operand]);
                EXPECT_GT(unit.num_blocks, 0);
                EXPECT_LE(unit.num_blocks, kernels::kUnitBlocks);
                blocks[unit.operand] += unit.num_blocks;
            }
            EXPECT_EQ(blocks.size(), kind == UnitKind::Made ? 3u : 1u);
            for (const auto& [operand, count] : blocks) EXPECT_EQ(count, (cols + 127) / 128);
        }
    }
}

}  // namespace
}  // namespace mok::plan
