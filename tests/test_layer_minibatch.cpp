#include <gtest/gtest.h>

#include <vector>

#include "layer/cpu_engine.h"

// The minibatch that the layer hands to a pass.
namespace mok {
namespace {

constexpr int kWorkers = 4;

int32_t minibatch_of(plan::PassKind kind, int64_t minibatch_rows, int64_t macrobatch_rows,
                     int64_t max_tokens) {
    LayerShape shape;
    shape.hidden = 1024;
    shape.intermediate = 256;
    shape.num_experts = 2;
    shape.top_k = 2;
    Tuning tuning;
    tuning.minibatch_rows = minibatch_rows;
    tuning.macrobatch_rows = macrobatch_rows;
    tuning.max_workers = kWorkers;
    Workspace workspace(Group::in_process(1)[0], shape, tuning, max_tokens);
    const std::vector<int32_t> ids(2 * shape.top_k, 0);
    const Schedule schedule(workspace, ConstTensor(ids.data(), DType::I32, {2, shape.top_k}));
    auto& engine = dynamic_cast<layer::CpuEngine&>(*workspace.impl().engine);
    const cpu::RankPass pass =
        engine.make_pass({kind, schedule.impl(), {}, {}, {}, {}, {}, {}, nullptr});
    return pass.problem().minibatch_rows;
}

// Four waves forward: 4 * W * 128 * 256 / min(2I, H) = 1024 rows; two backward: 2 * W * 128 * 256 /
// min(I, H) = 1024.
TEST(LayerMinibatch, TheDefaultIsWholeWaves) {
    EXPECT_EQ(minibatch_of(plan::PassKind::Forward, 0, 4096, 2000), 1024);
    EXPECT_EQ(minibatch_of(plan::PassKind::Recompute, 0, 4096, 2000), 1024);
    EXPECT_EQ(minibatch_of(plan::PassKind::Backward, 0, 4096, 2000), 1024);
    EXPECT_EQ(minibatch_of(plan::PassKind::BackwardInput, 0, 4096, 2000), 1024);
    EXPECT_EQ(minibatch_of(plan::PassKind::Wgrad, 0, 4096, 2000), 1024);
}

TEST(LayerMinibatch, TheDefaultIsNoMoreThanTheRing) {
    EXPECT_EQ(minibatch_of(plan::PassKind::Forward, 0, 128, 2000), 128);
    EXPECT_EQ(minibatch_of(plan::PassKind::Backward, 0, 128, 2000), 128);
    EXPECT_EQ(minibatch_of(plan::PassKind::Forward, 0, 640, 2000), 640);
    EXPECT_EQ(minibatch_of(plan::PassKind::Backward, 0, 640, 2000), 640);
}

// 100 tokens of 2 choices on 2 experts fill at most 200 + 2 * 127 slots: 3 tiles of ring.
TEST(LayerMinibatch, NoMoreThanARingThatNoRoutingCouldFill) {
    EXPECT_EQ(minibatch_of(plan::PassKind::Forward, 0, 131072, 100), 384);
    EXPECT_EQ(minibatch_of(plan::PassKind::Backward, 0, 131072, 100), 384);
    EXPECT_EQ(minibatch_of(plan::PassKind::Backward, 2432, 131072, 100), 384);
}

TEST(LayerMinibatch, TheCallersIsTaken) {
    EXPECT_EQ(minibatch_of(plan::PassKind::Forward, 256, 4096, 2000), 256);
    EXPECT_EQ(minibatch_of(plan::PassKind::Backward, 256, 4096, 2000), 256);
    EXPECT_EQ(minibatch_of(plan::PassKind::Forward, 4096, 4096, 2000), 4096);
}

}  // namespace
}  // namespace mok
