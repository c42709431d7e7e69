// The layer in FP8 against the oracle that quantises at the same points, its distance from the
// layer without quantisation, and the numbers of cases that FP8 alone has. Sanitizers: asan
#include <cmath>

#include "cli/common/scaled_shape.h"
#include "cli/io/model_config.h"
#include "layer_fixture.h"

namespace mok_test {
namespace {

constexpr Precision kRecipes[] = {Precision::Fp8Block, Precision::Mxfp8};

CaseOptions in(Precision precision, CaseOptions o) {
    o.shape.precision = precision;
    return o;
}

// Both in FP64: found, and the norm of the difference over that of want.
double distance(const std::vector<double>& found, const std::vector<double>& want) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
        error += (found[i] - want[i]) * (found[i] - want[i]);
        norm += want[i] * want[i];
    }
    return std::sqrt(error / norm);
}
double cosine(const std::vector<double>& a, const std::vector<double>& b) {
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    return ab / std::sqrt(aa * bb);
}
template <class T>
std::vector<double> widen(const std::vector<T>& t) {
    std::vector<double> to;
    for (const T v : t) {
        if constexpr (std::is_same_v<T, Bf16>) {
            to.push_back(to_f32(v));
        } else {
            to.push_back(v);
        }
    }
    return to;
}

class Recipe : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Fp8, Recipe, testing::ValuesIn(kRecipes),
                         [](const auto& info) { return precision_name(info.param); });

// Everything at once, in sizes that leave tails in every block.
TEST_P(Recipe, EqualsTheQuantisingOracle) {
    for (const uint64_t seed : {1, 2, 3}) {
        for (CaseOptions o : {case_of(600), rich_case(600), case_of(300, 264, 200, 5, 3)}) {
            o.seed = seed;
            const RandomCase c = cli::random_case(in(GetParam(), o));
            expect_within_bounds(c, run(c, on_ranks(3)));
        }
    }
}

// FP32 sums alone stand between the two: what is not rounded to BF16 in between agrees to 1e-6 in
// nearly every element, and so no quantisation can be at another point or of another rule.
TEST_P(Recipe, NearlyEveryWeightGradientIsTheOraclesToAMillionth) {
    const RandomCase c = cli::random_case(in(GetParam(), case_of(600)));
    const GlobalResult found = run(c, on_ranks(2));
    const cli::Truth want = cli::truth_of(c);
    const auto share = [](const std::vector<float>& a, const std::vector<double>& b) {
        double rms = 0.0;
        for (const double v : b) rms += v * v / static_cast<double>(b.size());
        int64_t close = 0;
        for (size_t i = 0; i < b.size(); ++i)
            close += std::abs(a[i] - b[i]) < 1e-6 * std::sqrt(rms);
        return static_cast<double>(close) / static_cast<double>(b.size());
    };
    EXPECT_GT(share(found.d_gate, want.grads.gate), 0.99);
    EXPECT_GT(share(found.d_up, want.grads.up), 0.99);
    EXPECT_GT(share(found.d_down, want.grads.down), 0.99);
    EXPECT_GT(share(found.d_topk_weights, want.grads.topk_weights), 0.98);
}

// E4M3 has 3 bits behind the point: a rounding error of about 2^-4 / sqrt(3) of a value, so of a
// product of two such operands, and of a sum of them, 5 %.
TEST_P(Recipe, DistanceFromTheLayerWithoutQuantisation) {
    RandomCase c = cli::random_case(in(GetParam(), case_of(600)));
    const cli::Truth quantised = cli::truth_of(c);
    const GlobalResult found = run(c, {});
    c.shape.precision = Precision::BF16;
    const cli::Truth exact = cli::truth_of(c);
    const auto expect_some = [](const char* what, double d) {
        EXPECT_GT(d, 0.03) << what;
        EXPECT_LT(d, 0.09) << what;
        RecordProperty(what, std::to_string(d));
    };
    expect_some("oracle_output", distance(quantised.output, exact.output));
    expect_some("oracle_d_x", distance(quantised.grads.x, exact.grads.x));
    expect_some("oracle_d_gate", distance(quantised.grads.gate, exact.grads.gate));
    expect_some("oracle_d_down", distance(quantised.grads.down, exact.grads.down));
    expect_some("output", distance(widen(found.output), exact.output));
    expect_some("d_down", distance(widen(found.d_down), exact.grads.down));
}

// The gradients point where those of BF16 do, on the public shapes scaled down.
TEST_P(Recipe, GradientsPointWhereThoseOfBf16Do) {
    for (const char* model : {"kimi-k2.7", "glm-5.2", "qwen3.5-397b", "deepseek-v4-pro"}) {
        SCOPED_TRACE(model);
        CaseOptions o;
        o.shape = cli::scaled_shape(io::named_model(model), {});
        o.num_tokens = 600;
        RandomCase c = cli::random_case(in(GetParam(), o));
        const GlobalResult a = run(c, {});
        c.shape.precision = Precision::BF16;
        const GlobalResult b = run(c, {});
        EXPECT_GE(cosine(widen(a.output), widen(b.output)), 0.996);
        EXPECT_GE(cosine(widen(a.d_x), widen(b.d_x)), 0.996);
        EXPECT_GE(cosine(widen(a.d_gate), widen(b.d_gate)), 0.996);
        EXPECT_GE(cosine(widen(a.d_up), widen(b.d_up)), 0.996);
        EXPECT_GE(cosine(widen(a.d_down), widen(b.d_down)), 0.996);
    }
}

// Experts of 1, 33 and 44 rows: blocks along slots that end inside a block of 32 and of 128; the
// fourth expert has more than a tile, the fifth none.
TEST_P(Recipe, ExpertsOfFewRows) {
    CaseOptions o = in(GetParam(), case_of(139, 256, 128, 5, 2));
    RandomCase c = cli::random_case(o);
    set_ids(c, ids_with_counts({1, 33, 44, 200, 0}, 9));
    const GlobalResult found = expect_right(c, on_ranks(3));
    const int64_t expert = 128 * 256;
    for (int64_t i = 4 * expert; i < 5 * expert; ++i) {
        ASSERT_EQ(found.d_gate[i], 0.0f);
        ASSERT_EQ(found.d_down[i], 0.0f);
    }
}

// Blocks of zeros and of 1e-38, amax at and beside 448 * 2^k, an infinity, a NaN.
TEST_P(Recipe, BoundariesOfScales) {
    CaseOptions o = in(GetParam(), case_of(300));
    RandomCase c = cli::random_case(o);
    const auto fill = [&](int64_t token, float value) {
        for (int64_t i = 0; i < 256; ++i) {
            c.x[token * 256 + i] = to_bf16(i % 5 == 0 ? value : value * 0.37f);
        }
    };
    fill(0, 0.0f);
    fill(1, 1e-38f);
    fill(2, 448.0f);
    fill(3, 450.0f);  // one BF16 number above
    fill(4, 446.0f);  // one below
    fill(5, 448.0f * 0x1p-12f);
    for (int64_t i = 0; i < 32; ++i) c.x[6 * 256 + i] = Bf16{0};  // a block of zeros beside others
    const GlobalResult found = expect_right(c, on_ranks(2));
    for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(to_f32(found.output[i]), 0.0f);
}
TEST_P(Recipe, InfinityAndNaN) {
    CaseOptions o = in(GetParam(), case_of(300));
    RandomCase c = cli::random_case(o);
    c.x[10 * 256 + 3] = to_bf16(std::numeric_limits<float>::infinity());
    c.x[20 * 256 + 200] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    c.grad_output[30 * 256 + 7] = to_bf16(-std::numeric_limits<float>::infinity());
    const GlobalResult found = run(c, on_ranks(2));
    expect_within_bounds(c, found);
    for (const int64_t token : {10, 20}) {
        EXPECT_TRUE(std::isnan(to_f32(found.output[token * 256])));
    }
    EXPECT_TRUE(std::isfinite(to_f32(found.output[11 * 256])));
}

// A clamped element has no gradient, to the bit, though its saved value is of FP8.
TEST_P(Recipe, ClampedElementsHaveNoGradient) {
    CaseOptions o = in(GetParam(), case_of(256, 128, 128, 1, 1));
    o.shape.activation = {0.01f, 1.0f, 0.0f};
    RandomCase c = cli::random_case(o);
    // Every gate above the limit, by weights and x of one sign; up anything.
    for (Bf16& v : c.x) v = to_bf16(std::fabs(to_f32(v)) + 0.1f);
    for (Bf16& v : c.gate) v = to_bf16(std::fabs(to_f32(v)) + 0.01f);
    const GlobalResult found = run(c, {});
    for (const float v : found.d_gate) ASSERT_EQ(v, 0.0f);
    EXPECT_TRUE(std::ranges::any_of(found.d_down, [](float v) { return v != 0.0f; }));
}

// Limits that many values lie close to: a saved value keeps its side though E4M3's step is 1/16.
TEST_P(Recipe, LimitsAmongTheValues) {
    for (const float limit : {0.3f, 0.7f, 1.1f}) {
        CaseOptions o = in(GetParam(), case_of(500));
        o.shape.activation = {limit, 1.702f, 1.0f};
        const RandomCase c = cli::random_case(o);
        expect_within_bounds(c, run(c, on_ranks(2)));
    }
}

// ---- bits

// The blocks along slots are of the global batch: nothing but the batch changes a bit.
TEST_P(Recipe, NoSettingChangesABit) {
    const RandomCase c = cli::random_case(in(GetParam(), rich_case(640)));
    const GlobalResult want = run(c, {});
    int turn = 0;
    for (const int ranks : {1, 3, 4}) {
        for (const int64_t macrobatch : {128, 512, 131072}) {
            for (const int64_t context : {0, 256, -1}) {
                GlobalOptions g = on_ranks(ranks);
                if (ranks == 3) g.tokens_per_rank = {256, 0, 384};
                if (ranks == 4) g.tokens_per_rank = {256, 0, 128, 256};
                g.tuning.macrobatch_rows = macrobatch;
                g.tuning.context_rows = context;
                g.tuning.minibatch_rows = turn % 2 ? 128 : 0;
                g.tuning.keep_x = turn % 3 == 0;
                g.tuning.fp8_dispatch = turn % 4 != 1;
                g.tuning.max_workers = 1 + turn % 4;
                g.split_backward = turn % 5 < 2;
                g.recompute = turn % 7 < 3;
                expect_same(c.shape, run(c, g), want, "turn " + std::to_string(turn) + ": ");
                ++turn;
            }
        }
    }
}

TEST_P(Recipe, BackwardInOneCallOrTwo) {
    const RandomCase c = cli::random_case(in(GetParam(), case_of(400)));
    const GlobalResult want = expect_right(c, on_ranks(3));
    for (const bool keep_x : {false, true}) {
        for (const bool split : {false, true}) {
            GlobalOptions g = on_ranks(2);
            g.tuning.macrobatch_rows = 256;
            g.tuning.context_rows = 256;
            g.tuning.keep_x = keep_x;
            g.split_backward = split;
            expect_same(c.shape, run(c, g), want);
        }
    }
}

TEST_P(Recipe, RandomOrdersOfTasks) {
    const RandomCase c = cli::random_case(in(GetParam(), rich_case(640)));
    const GlobalResult want = run(c, {});
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        GlobalOptions g = on_ranks(2, {256, 384});
        g.diagnostics.resize(2);
        for (Diagnostics& d : g.diagnostics) d.order_seed = seed;
        g.tuning.macrobatch_rows = seed % 2 ? 128 : 384;
        g.tuning.context_rows = seed % 3 == 0 ? -1 : 256;
        g.tuning.keep_x = seed % 4 < 2;
        g.split_backward = seed % 5 < 2;
        expect_same(c.shape, run(c, g), want, "seed " + std::to_string(seed) + ": ");
    }
}

// ---- bytes

// Hidden 264 is padded to 384 elements and 12 bytes of scales.
TEST_P(Recipe, BytesOfTheDispatch) {
    CaseOptions o = in(GetParam(), case_of(300, 264, 128, 8, 2));
    o.backward = false;
    const RandomCase c = cli::random_case(o);
    const auto pulled = [&](bool fp8) {
        GlobalOptions g = on_ranks(2);
        g.tuning.fp8_dispatch = fp8;
        return run(c, g).links[0].pulled;
    };
    const std::vector<int64_t> narrow = pulled(true), wide = pulled(false);
    for (int home : {0, 1}) {
        ASSERT_GT(wide[home], 0);
        ASSERT_EQ(wide[home] % (2 * 264), 0);
        EXPECT_EQ(narrow[home], wide[home] / (2 * 264) * (384 + 12));
    }
}

}  // namespace
}  // namespace mok_test
