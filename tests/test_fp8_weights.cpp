// FP8 weights as objects of their own: what lies where, when passes take them, what is refused.
// Sanitizers: asan
#include <cmath>
#include <cstring>
#include <mutex>

#include "layer/state.h"
#include "layer_fixture.h"
#include "math/e4m3.h"

namespace mok_test {
namespace {

constexpr int64_t kHidden = 264, kIntermediate = 136, kExperts = 3, kTokens = 200;

RandomCase make_case(Precision precision) {
    CaseOptions o = case_of(kTokens, kHidden, kIntermediate, kExperts, 2);
    o.shape.precision = precision;
    return cli::random_case(o);
}

struct Layer {
    explicit Layer(Precision precision)
        : c(make_case(precision)),
          workspace(Group::self(), c.shape, {}, kTokens),
          part(part_of(c, workspace, 0, kTokens)),
          schedule(workspace, part.ids),
          outputs(c, workspace, kTokens) {}

    void forward_with(const Fp8Weights* fp8) {
        Weights weights = part.weights;
        weights.fp8 = fp8;
        forward(workspace, schedule, weights, part.inputs, outputs.out.tensor());
    }
    std::vector<float> output() const { return outputs.out.values(); }

    RandomCase c;
    Workspace workspace;
    RankPart part;
    Schedule schedule;
    RankOutputs outputs;
};

template <class Call>
void expect_refused(Call call, const std::string& sentence) {
    try {
        call();
        ADD_FAILURE() << "expected: " << sentence;
    } catch (const ShapeError& e) {
        EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
}

// What an element is, read from the memory by the format's own description.
struct Orientation {
    plan::Fp8MatrixMap map;
    bool transposed;
};
float value_at(const std::byte* memory, Precision precision, const Orientation& o, int64_t expert,
               int64_t outer, int64_t k) {
    const auto element = std::to_integer<uint8_t>(
        memory[o.map.elements + (expert * o.map.outer + outer) * o.map.padded_k + k]);
    const std::byte* scales = memory + o.map.scales + expert * o.map.expert_scales;
    if (precision == Precision::Fp8Block) {
        float scale = 0.0f;
        std::memcpy(&scale, scales + 4 * (outer / 128 * (o.map.padded_k / 128) + k / 128), 4);
        return to_f32(E4m3{element}) * scale;
    }
    // The tile of 128 rows and 4 blocks of 32; in it row r of 128 stands at r % 32 * 16 + r / 32
    // * 4.
    const int64_t tile = outer / 128 * (o.map.padded_k / 128) + k / 128;
    const int64_t at = 512 * tile + outer % 32 * 16 + outer % 128 / 32 * 4 + k % 128 / 32;
    return to_f32(E4m3{element}) * std::ldexp(1.0f, std::to_integer<int>(scales[at]) - 127);
}

class Fp8WeightsOf : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Recipe, Fp8WeightsOf,
                         testing::Values(Precision::Fp8Block, Precision::Mxfp8),
                         [](const auto& info) { return precision_name(info.param); });

// Every element of every matrix, in both orientations, is within E4M3's half step of its source:
// 2^-4 of its own size, or of the block's least step.
TEST_P(Fp8WeightsOf, HoldTheWeightsInBothOrientations) {
    Layer layer(GetParam());
    Fp8Weights fp8(layer.workspace);
    std::memset(fp8.data(), 0xff, fp8.bytes());
    quantize_weights(layer.workspace, layer.part.weights, fp8);
    const plan::Fp8WeightsMap map = layer.workspace.impl().fp8_weights_map;
    const auto check = [&](const std::vector<Bf16>& source, int64_t rows, int64_t cols,
                           const Orientation& o) {
        double largest = 0.0;
        for (const Bf16 v : source) largest = std::max(largest, std::fabs(double{to_f32(v)}));
        ASSERT_EQ(o.map.outer, o.transposed ? cols : rows);
        for (int64_t e = 0; e < kExperts; ++e) {
            for (int64_t outer = 0; outer < o.map.outer; ++outer) {
                for (int64_t k = 0; k < o.map.padded_k; ++k) {
                    const int64_t r = o.transposed ? k : outer, c = o.transposed ? outer : k;
                    const bool inside = r < rows && c < cols;
                    const float want = inside ? to_f32(source[(e * rows + r) * cols + c]) : 0.0f;
                    const float found = value_at(fp8.data(), GetParam(), o, e, outer, k);
                    ASSERT_LE(std::fabs(found - want),
                              std::fabs(want) / 16 + largest / 448 * 0x1p-9)
                        << e << " " << outer << " " << k;
                }
            }
        }
    };
    const int64_t h = kHidden, i = kIntermediate;
    check(layer.c.gate, i, h, {map.gate, false});
    check(layer.c.gate, i, h, {map.gate_t, true});
    check(layer.c.up, i, h, {map.up, false});
    check(layer.c.up, i, h, {map.up_t, true});
    check(layer.c.down, h, i, {map.down, false});
    check(layer.c.down, h, i, {map.down_t, true});
}

// A step of an optimizer: the old weights are refused, the new ones lie at the same address.
TEST_P(Fp8WeightsOf, AnOptimizerStepInvalidatesThem) {
    Layer layer(GetParam());
    Fp8Weights fp8(layer.workspace);
    const std::byte* const address = fp8.data();
    EXPECT_FALSE(fp8.is_filled());
    expect_refused([&] { layer.forward_with(&fp8); }, "found older ones");
    quantize_weights(layer.workspace, layer.part.weights, fp8);
    EXPECT_TRUE(fp8.is_filled());
    layer.forward_with(&fp8);
    const std::vector<float> before = layer.output();

    for (Bf16& v : layer.c.down) v = to_bf16(2.0f * to_f32(v));
    layer.forward_with(&fp8);
    EXPECT_EQ(layer.output(), before) << "what the passes read is the FP8 weights";
    fp8.invalidate();
    expect_refused([&] { layer.forward_with(&fp8); },
                   "weights.fp8: expected weights that quantize_weights has filled");
    quantize_weights(layer.workspace, layer.part.weights, fp8);
    layer.forward_with(&fp8);
    EXPECT_EQ(fp8.data(), address);
    const std::vector<float> after = layer.output();
    for (size_t i = 0; i < after.size(); ++i) ASSERT_EQ(after[i], 2.0f * before[i]);
}

// Bytes of another rank, as sharded training gathers them; the BF16 matrices need not be there.
TEST_P(Fp8WeightsOf, BytesCanBeTakenFromElsewhere) {
    Layer layer(GetParam());
    Fp8Weights made(layer.workspace), copied(layer.workspace);
    quantize_weights(layer.workspace, layer.part.weights, made);
    layer.forward_with(&made);
    const std::vector<float> want = layer.output();
    ASSERT_EQ(made.bytes(), copied.bytes());
    std::memcpy(copied.data(), made.data(), made.bytes());
    copied.set_filled();
    layer.part.weights.gate = layer.part.weights.up = layer.part.weights.down = {};
    layer.forward_with(&copied);
    EXPECT_EQ(layer.output(), want);
}

TEST_P(Fp8WeightsOf, F32WeightsAreRoundedToBf16First) {
    Layer layer(GetParam());
    Fp8Weights from_bf16(layer.workspace), from_f32(layer.workspace);
    std::memset(from_bf16.data(), 0, from_bf16.bytes());
    std::memset(from_f32.data(), 0, from_f32.bytes());
    quantize_weights(layer.workspace, layer.part.weights, from_bf16);
    const auto widened = [](const std::vector<Bf16>& t) {
        std::vector<float> to;
        for (const Bf16 v : t) to.push_back(to_f32(v) * (1.0f + 0x1p-12f));
        return to;
    };
    const std::vector<float> gate = widened(layer.c.gate), up = widened(layer.c.up);
    const std::vector<float> down = widened(layer.c.down);
    Weights weights;
    weights.gate = ConstTensor(gate.data(), DType::F32, {kExperts, kIntermediate, kHidden});
    weights.up = ConstTensor(up.data(), DType::F32, {kExperts, kIntermediate, kHidden});
    weights.down = ConstTensor(down.data(), DType::F32, {kExperts, kHidden, kIntermediate});
    quantize_weights(layer.workspace, weights, from_f32);
    EXPECT_EQ(std::memcmp(from_bf16.data(), from_f32.data(), from_f32.bytes()), 0);
}

TEST(Fp8Weights, WhatIsRefused) {
    Layer bf16(Precision::BF16), block(Precision::Fp8Block), mx(Precision::Mxfp8);
    expect_refused([&] { Fp8Weights none(bf16.workspace); },
                   "expected a workspace of precision fp8_block or mxfp8, found one of bf16");
    expect_refused([&] { block.forward_with(nullptr); },
                   "weights.fp8: expected FP8 weights with precision fp8_block");
    Fp8Weights of_block(block.workspace);
    quantize_weights(block.workspace, block.part.weights, of_block);
    expect_refused([&] { bf16.forward_with(&of_block); },
                   "weights.fp8: expected none with precision bf16");
    expect_refused([&] { mx.forward_with(&of_block); },
                   "expected those of mxfp8, 3 experts, hidden 264, intermediate 136, found "
                   "fp8_block, 3 experts, hidden 264, intermediate 136");
    expect_refused([&] { quantize_weights(mx.workspace, mx.part.weights, of_block); },
                   "expected those of mxfp8");
    Weights missing = block.part.weights;
    missing.up = {};
    expect_refused([&] { quantize_weights(block.workspace, missing, of_block); },
                   "up: expected shape [3, 136, 264]");
    block.forward_with(&of_block);
}

// Ranks that disagree about the precision or the dispatch are all told so.
TEST(Fp8Weights, RanksAgreeOnThePrecision) {
    const auto make = [](LayerShape shape, Tuning tuning) {
        const std::vector<Group> groups = Group::in_process(2);
        int refused = 0;
        std::mutex turn;
        cli::run_ranks(groups, [&](const Group& group) {
            LayerShape own_shape = case_of(8).shape;
            Tuning own_tuning;
            if (group.rank() == 1) {
                own_shape = shape;
                own_tuning = tuning;
            }
            try {
                Workspace w(group, own_shape, own_tuning, 8);
            } catch (const ShapeError&) {
                const std::lock_guard lock(turn);
                ++refused;
            }
        });
        return refused;
    };
    LayerShape other = case_of(8).shape;
    EXPECT_EQ(make(other, {}), 0);
    other.precision = Precision::Mxfp8;
    EXPECT_EQ(make(other, {}), 2);
    Tuning wide;
    wide.fp8_dispatch = false;
    EXPECT_EQ(make(case_of(8).shape, wide), 2);
}

}  // namespace
}  // namespace mok_test
