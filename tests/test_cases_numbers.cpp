// Case 10 (NaN and Inf are computed and stay where they belong), 24 and 30.
// Sanitizers: asan
#include "layer_fixture.h"

namespace mok_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool same_bits(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
template <class T>
bool same_row(const std::vector<T>& a, int64_t row_a, const std::vector<T>& b, int64_t row_b,
              int64_t cols) {
    return std::memcmp(a.data() + row_a * cols, b.data() + row_b * cols, cols * sizeof(T)) == 0;
}

// ---- case 10

// NaN or Inf in one token reached other tokens through padding, masks and 0 * Inf, or was refused.
struct Foreign {
    const char* where;
    std::function<void(RandomCase&)> put;
    bool one_token;  // all other tokens keep their bits
};
void PrintTo(const Foreign& f, std::ostream* out) {
    *out << f.where;
}
class Case10 : public testing::TestWithParam<Foreign> {};
TEST_P(Case10, NonFiniteValuesStayWhereTheMathematicsSendsThem) {
    CaseOptions o = rich_case(150);
    RandomCase c = cli::random_case(o);
    const GlobalResult clean = run(c, {});
    GetParam().put(c);
    const GlobalResult r = expect_right(c, on_ranks(3));
    for (int64_t t = 0; GetParam().one_token && t < 150; ++t) {
        if (t == 40) continue;
        EXPECT_TRUE(same_row(r.output, t, clean.output, t, 136)) << t;
        EXPECT_TRUE(same_row(r.d_x, t, clean.d_x, t, 136)) << t;
        EXPECT_TRUE(same_row(r.d_topk_weights, t, clean.d_topk_weights, t, 3)) << t;
    }
}
INSTANTIATE_TEST_SUITE_P(
    Places, Case10,
    testing::Values(
        Foreign{"NaNInX", [](RandomCase& c) { c.x[40 * 136 + 9] = to_bf16(kNaN); }, true},
        Foreign{"InfInX", [](RandomCase& c) { c.x[40 * 136 + 9] = to_bf16(kInf); }, true},
        Foreign{"MinusInfInX", [](RandomCase& c) { c.x[40 * 136 + 135] = to_bf16(-kInf); }, true},
        Foreign{"AllNaN", [](RandomCase& c) { std::fill_n(&c.x[40 * 136], 136, to_bf16(kNaN)); },
                true},
        Foreign{"NaNInDOut", [](RandomCase& c) { c.grad_output[40 * 136] = to_bf16(kNaN); }, true},
        Foreign{"InfInDOut", [](RandomCase& c) { c.grad_output[40 * 136] = to_bf16(kInf); }, true},
        Foreign{"NaNRouterWeight",
                [](RandomCase& c) {
                    c.topk_ids[40 * 3] = 2;
                    c.topk_weights[40 * 3] = kNaN;
                },
                false},
        Foreign{"InfSharedWeight", [](RandomCase& c) { c.shared_weights[40] = kInf; }, true},
        Foreign{"NaNInGate", [](RandomCase& c) { c.gate[3 * 72 * 136 + 5] = to_bf16(kNaN); },
                false},
        Foreign{"NaNInDown", [](RandomCase& c) { c.down[3 * 72 * 136 + 5] = to_bf16(kNaN); },
                false},
        Foreign{"NaNInDownBias", [](RandomCase& c) { c.down_bias[3 * 136 + 5] = to_bf16(kNaN); },
                false},
        Foreign{"InfInSharedUp", [](RandomCase& c) { c.shared_up[7] = to_bf16(kInf); }, false}),
    [](const auto& info) { return info.param.where; });

// ---- case 24

// Choices were added in BF16, or in an order that depended on the ranks.
TEST(Case24, ChoicesAreSummedInFP32AndRoundedOnce) {
    const RandomCase c = cli::random_case(case_of(100, 256, 128, 8, 4));
    // y of each choice, exactly: a layer with that choice alone and weight 1 returns it.
    std::vector<std::vector<Bf16>> y;
    for (int64_t choice = 0; choice < 4; ++choice) {
        RandomCase one = c;
        for (int64_t r = 0; r < 400; ++r) {
            if (r % 4 != choice) one.topk_ids[r] = -1;
            one.topk_weights[r] = 1.0f;
        }
        y.push_back(run(one, {}).output);
    }
    const GlobalResult r = run(c, on_ranks(3));
    for (int64_t i = 0; i < 100 * 256; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < 4; ++k) sum += c.topk_weights[i / 256 * 4 + k] * to_f32(y[k][i]);
        ASSERT_EQ(r.output[i].bits, to_bf16(sum).bits) << i;
    }
}

// The limits were left out of the backward, or the slope at them was wrong.
class Case24Clamped : public testing::TestWithParam<Activation> {};
TEST_P(Case24Clamped, LimitsHoldInBothPasses) {
    CaseOptions o = case_of(200);
    o.shape.activation = GetParam();
    o.shape.shared_intermediate = 64;
    o.biases = true;
    RandomCase c = cli::random_case(o);
    for (Bf16& v : c.x) v = to_bf16(6.0f * to_f32(v));  // gate and up ~ N(0, 36)
    GlobalOptions g = on_ranks(2, {128, 72});
    for (const int64_t context : {0, -1}) {
        g.tuning.context_rows = context;
        const GlobalResult clamped = expect_right(c, g);
        RandomCase unlimited = c;
        unlimited.shape.activation.limit = kInf;
        const GlobalResult other = run(unlimited, g);
        EXPECT_NE(std::memcmp(clamped.output.data(), other.output.data(), 2 * 200 * 256), 0);
    }
}
INSTANTIATE_TEST_SUITE_P(Limits, Case24Clamped,
                         testing::Values(Activation{7.0f, 1.702f, 1.0f},
                                         Activation{10.0f, 1.0f, 0.0f},
                                         Activation{10.0f, 1.702f, 1.0f}));

// The down bias was added once per token instead of once per choice, unweighted; and padding rows
// were counted in its gradient.
TEST(Case24, DownBiasIsWeightedByTheRouter) {
    CaseOptions o = case_of(70, 256, 128, 4, 2);
    o.biases = true;
    RandomCase c = cli::random_case(o);
    std::fill(c.down.begin(), c.down.end(), Bf16{0});  // y is the bias
    const GlobalResult r = expect_right(c, on_ranks(2));
    for (int64_t t = 0; t < 70; ++t) {
        for (int64_t i = 0; i < 256; ++i) {
            float sum = 0.0f;
            for (int64_t k = 0; k < 2; ++k) {
                const Bf16 bias = c.down_bias[c.topk_ids[2 * t + k] * 256 + i];
                sum += c.topk_weights[2 * t + k] * to_f32(bias);
            }
            ASSERT_EQ(r.output[t * 256 + i].bits, to_bf16(sum).bits);
        }
    }
}
TEST(Case24, PaddingRowsAreNotInABiasGradient) {
    // One row per expert: the gradient of its down bias is w * d_y, one product.
    CaseOptions o = case_of(8, 256, 128, 8, 1);
    o.biases = true;
    RandomCase c = cli::random_case(o);
    std::iota(c.topk_ids.begin(), c.topk_ids.end(), 0);
    const GlobalResult r = expect_right(c, on_ranks(2));
    for (int64_t e = 0; e < 8; ++e) {
        for (int64_t i = 0; i < 256; ++i) {
            const float want = c.topk_weights[e] * to_f32(c.grad_output[e * 256 + i]);
            ASSERT_TRUE(same_bits(r.d_down_bias[e * 256 + i], want)) << e << ", " << i;
        }
    }
}

// ---- case 30

// Takes the tokens `from` of a case, in that order.
RandomCase pick(const RandomCase& c, const std::vector<int64_t>& from) {
    RandomCase p = c;
    p.num_tokens = std::ssize(from);
    const auto pick_rows = [&from](auto& to, const auto& all, int64_t cols) {
        to.clear();
        for (const int64_t t : from) {
            to.insert(to.end(), all.begin() + t * cols, all.begin() + (t + 1) * cols);
        }
    };
    pick_rows(p.x, c.x, c.shape.hidden);
    pick_rows(p.grad_output, c.grad_output, c.shape.hidden);
    pick_rows(p.topk_ids, c.topk_ids, c.shape.top_k);
    pick_rows(p.topk_weights, c.topk_weights, c.shape.top_k);
    pick_rows(p.shared_weights, c.shared_weights, 1);
    return p;
}

// Token i of one result has the bits of token t of another.
void expect_same_token(const LayerShape& s, const GlobalResult& found, int64_t i,
                       const GlobalResult& want, int64_t t) {
    EXPECT_TRUE(same_row(found.output, i, want.output, t, s.hidden)) << t;
    EXPECT_TRUE(same_row(found.d_x, i, want.d_x, t, s.hidden)) << t;
    EXPECT_TRUE(same_row(found.d_topk_weights, i, want.d_topk_weights, t, s.top_k)) << t;
    EXPECT_TRUE(same_row(found.d_shared_weights, i, want.d_shared_weights, t, 1)) << t;
}

// A token's numbers changed with the rest of the batch, because kernels were chosen by its size.
TEST(Case30, DroppingOrPermutingTokensKeepsTheOthersBits) {
    const RandomCase c = cli::random_case(rich_case(333));
    const GlobalResult all = run(c, {});
    cli::Random random(9);
    for (const int64_t keep : {333, 200, 64, 17, 2, 1}) {
        std::vector<int64_t> from(333);
        std::iota(from.begin(), from.end(), 0);
        for (size_t i = from.size(); i > 1; --i) std::swap(from[i - 1], from[random.below(i)]);
        from.resize(keep);
        const RandomCase part = pick(c, from);
        for (const int ranks : {1, 2}) {
            const GlobalResult r = run(part, on_ranks(ranks));
            for (int64_t i = 0; i < keep; ++i) expect_same_token(c.shape, r, i, all, from[i]);
        }
    }
}
TEST(Case30, ReplacingTheOtherTokensKeepsATokensBits) {
    const RandomCase c = cli::random_case(rich_case(150));
    const GlobalResult all = run(c, {});
    CaseOptions other_options = rich_case(150);
    other_options.seed = 99;
    const RandomCase other = cli::random_case(other_options);
    for (const float filler : {0.0f, 1e30f, kInf, kNaN}) {
        RandomCase mixed = other;  // other tokens and routing, this case's weights
        mixed.gate = c.gate, mixed.up = c.up, mixed.down = c.down;
        mixed.gate_bias = c.gate_bias, mixed.up_bias = c.up_bias, mixed.down_bias = c.down_bias;
        mixed.shared_gate = c.shared_gate, mixed.shared_up = c.shared_up;
        mixed.shared_down = c.shared_down;
        std::vector<int64_t> kept;
        for (int64_t t = 0; t < 150; ++t) {
            if (filler != 0.0f) std::fill_n(&mixed.x[t * 136], 136, to_bf16(filler));
            if (t % 7 != 3) continue;
            kept.push_back(t);
            std::copy_n(&c.x[t * 136], 136, &mixed.x[t * 136]);
            std::copy_n(&c.grad_output[t * 136], 136, &mixed.grad_output[t * 136]);
            std::copy_n(&c.topk_ids[t * 3], 3, &mixed.topk_ids[t * 3]);
            std::copy_n(&c.topk_weights[t * 3], 3, &mixed.topk_weights[t * 3]);
            mixed.shared_weights[t] = c.shared_weights[t];
        }
        for (const int ranks : {1, 3}) {
            const GlobalResult r = run(mixed, on_ranks(ranks));
            for (const int64_t t : kept) expect_same_token(c.shape, r, t, all, t);
        }
    }
}

}  // namespace
}  // namespace mok_test
