// Sanitizers: asan
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "cli/train/dense.h"
#include "cli/train/embedding.h"
#include "cli/train/router.h"

// Every gradient against central differences of the forward pass, whose sums are taken in FP64.
namespace mok::train {
namespace {

using Values = std::vector<float>;

Values random_values(size_t count, uint64_t seed) {
    std::mt19937_64 engine(seed);
    Values values(count);
    for (float& value : values) {
        value = static_cast<float>(static_cast<double>(engine() >> 11) * 0x1p-53 * 2.0 - 1.0);
    }
    return values;
}

double weighted_sum(const Values& values, const Values& weights) {
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) sum += static_cast<double>(values[i]) * weights[i];
    return sum;
}

// d f / d at[i] for every i, to about 1e-4 for f and values of order one.
void expect_gradient(Values& at, const std::function<double()>& f, const Values& gradient) {
    ASSERT_EQ(at.size(), gradient.size());
    for (size_t i = 0; i < at.size(); ++i) {
        const float kept = at[i], step = 0.0078125f;
        at[i] = kept + step;
        const double above = f();
        at[i] = kept - step;
        const double below = f();
        at[i] = kept;
        EXPECT_NEAR(gradient[i], (above - below) / (2.0 * step), 2e-3) << "element " << i;
    }
}

TEST(Dense, RmsNormGivesRowsOfMeanSquareOne) {
    const Values x = random_values(3 * 16, 1), gain(16, 1.0f);
    Values y(x.size()), inv_rms(3);
    rms_norm({3, 16}, x.data(), gain.data(), y.data(), inv_rms.data());
    for (int row = 0; row < 3; ++row) {
        double mean = 0.0;
        for (int i = 0; i < 16; ++i) mean += y[row * 16 + i] * y[row * 16 + i] / 16.0;
        EXPECT_NEAR(mean, 1.0, 1e-4);
    }
}

TEST(Dense, RmsNormGradients) {
    const NormShape shape{3, 8};
    Values x = random_values(24, 2), gain = random_values(8, 3);
    const Values d_y = random_values(24, 4), residual = random_values(24, 5);
    Values y(24), inv_rms(3);
    const auto loss = [&] {
        rms_norm(shape, x.data(), gain.data(), y.data(), inv_rms.data());
        return weighted_sum(y, d_y) + weighted_sum(x, residual);
    };
    loss();
    Values d_x = residual, d_gain(8, 99.0f);
    rms_norm_backward(shape, x.data(), gain.data(), inv_rms.data(), d_y.data(), d_x.data(),
                      d_gain.data());
    expect_gradient(x, loss, d_x);
    expect_gradient(gain, loss, d_gain);
}

TEST(Dense, LinearGradients) {
    const LinearShape shape{4, 8, 5};
    Values x = random_values(32, 6), weight = random_values(40, 7);
    const Values d_y = random_values(20, 8);
    Values y(20);
    const auto loss = [&] {
        linear(shape, x.data(), weight.data(), y.data());
        return weighted_sum(y, d_y);
    };
    Values d_x(32, 99.0f), d_weight(40, 99.0f);
    linear_dgrad(shape, d_y.data(), weight.data(), d_x.data());
    linear_wgrad(shape, d_y.data(), x.data(), d_weight.data());
    expect_gradient(x, loss, d_x);
    expect_gradient(weight, loss, d_weight);
}

TEST(Dense, CrossEntropyOfEqualLogitsIsLnOf256) {
    Values logits(2 * 256, 3.0f);
    const std::vector<uint8_t> targets{0, 255};
    EXPECT_NEAR(cross_entropy(2, targets.data(), 1.0f, logits.data()), 2.0 * std::log(256.0), 1e-5);
}

TEST(Dense, CrossEntropyGradient) {
    Values logits = random_values(2 * 256, 9);
    const std::vector<uint8_t> targets{7, 200};
    const auto loss = [&] {
        Values copy = logits;
        return 0.5 * cross_entropy(2, targets.data(), 1.0f, copy.data());
    };
    Values gradient = logits;
    cross_entropy(2, targets.data(), 0.5f, gradient.data());
    expect_gradient(logits, loss, gradient);
}

struct Routed {
    explicit Routed(RouterShape shape)
        : probs(shape.rows * shape.num_experts),
          ids(shape.rows * shape.top_k),
          weights(shape.rows * shape.top_k),
          count(shape.num_experts),
          prob_sum(shape.num_experts) {}
    Values probs;
    std::vector<int32_t> ids;
    Values weights;
    std::vector<int64_t> count;
    std::vector<double> prob_sum;
};

Routed route(RouterShape shape, const Values& logits) {
    Routed routed(shape);
    routed.probs = logits;
    choose_experts(shape, {routed.probs.data(), routed.ids.data(), routed.weights.data(),
                           routed.count.data(), routed.prob_sum.data()});
    return routed;
}

TEST(Router, ChoosesTheLargestAndTheLowerOfEqualOnes) {
    const float ln2 = 0.69314718f;
    const Routed routed = route({2, 4, 2}, {0, 2 * ln2, ln2, 0, 0, 0, 0, 0});
    EXPECT_EQ(routed.ids, (std::vector<int32_t>{1, 2, 0, 1}));
    EXPECT_NEAR(routed.probs[1], 4.0 / 8.0, 1e-6);
    EXPECT_NEAR(routed.weights[0], 2.0 / 3.0, 1e-6);
    EXPECT_NEAR(routed.weights[1], 1.0 / 3.0, 1e-6);
    EXPECT_NEAR(routed.weights[2], 0.5, 1e-6);
    EXPECT_EQ(routed.count, (std::vector<int64_t>{1, 2, 1, 0}));
    EXPECT_NEAR(routed.prob_sum[3], 1.0 / 8.0 + 1.0 / 4.0, 1e-6);
}

// With every expert equally likely the loss is its least value, the factor itself; with all tokens
// on one expert it is the factor times E.
TEST(Router, LoadBalanceLossAtItsEnds) {
    const RouterShape shape{4, 2, 1};
    const std::vector<int64_t> even{1, 1, 1, 1}, one{2, 0, 2, 0};
    const std::vector<double> half{1.0, 1.0, 1.0, 1.0}, all{2.0, 0.0, 2.0, 0.0};
    EXPECT_DOUBLE_EQ(load_balance(shape, {even, half, 4}, 0.5).loss, 0.5);
    EXPECT_DOUBLE_EQ(load_balance(shape, {one, all, 4}, 0.5).loss, 1.0);
}

TEST(Router, Gradient) {
    const RouterShape shape{3, 5, 2};
    // Levels 0.3 apart, so that no choice changes within a difference.
    Values logits{0.9f, 0.3f, 0.0f, 1.5f, 0.6f, 0.0f, 1.2f, 0.6f,
                  0.3f, 0.9f, 1.5f, 0.0f, 0.6f, 1.2f, 0.3f};
    const Values d_weights = random_values(6, 10);
    const auto loss = [&] {
        const Routed routed = route(shape, logits);
        return weighted_sum(routed.weights, d_weights) +
               load_balance(shape, {routed.count, routed.prob_sum, 3}, 0.7).loss;
    };
    const Routed routed = route(shape, logits);
    const Balance balance = load_balance(shape, {routed.count, routed.prob_sum, 3}, 0.7);
    Values d_logits(15);
    choose_experts_backward(shape, {routed.probs.data(), routed.ids.data(), routed.weights.data(),
                                    d_weights.data(), balance.d_prob.data(), d_logits.data()});
    expect_gradient(logits, loss, d_logits);
}

Config small_embedding() {
    Config config;
    config.hidden = 8;
    config.window = 2;
    config.ngram_order = 3;
    config.ngram_rows = 4;
    return config;
}

TEST(Embedding, RowsAreThoseOfTheBytesBefore) {
    const Config config = small_embedding();
    std::vector<uint8_t> bytes(config.context_bytes() + config.sequence_length);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i % 5 == 0 ? 9 : i);
    std::vector<int32_t> rows(config.sequence_length * num_features(config));
    find_rows(config, bytes, rows.data());
    // Context 3: the first position's own byte is bytes[2].
    EXPECT_EQ(rows[0], 2);
    EXPECT_EQ(rows[1], 256 + 1);
    EXPECT_GE(rows[2], 512);
    EXPECT_LT(rows[2], 516);
    EXPECT_GE(rows[3], 516);
    EXPECT_LT(rows[3], 520);
    EXPECT_EQ(rows[4 * 3], 9);
    EXPECT_EQ(rows[4 * 3 + 1], 256 + 4);
    // Position 0 reads nothing after bytes[2].
    std::vector<uint8_t> other = bytes;
    for (size_t i = 3; i < other.size(); ++i) other[i] ^= 0xff;
    std::vector<int32_t> other_rows(rows.size());
    find_rows(config, other, other_rows.data());
    EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 4, other_rows.begin()));
}

TEST(Embedding, GradientIsTheSameInColumnsAndAsFiniteDifferences) {
    const Config config = small_embedding();
    std::vector<uint8_t> bytes(config.context_bytes() + config.sequence_length, 3);
    bytes[40] = 4;
    std::vector<int32_t> rows(config.sequence_length * num_features(config));
    find_rows(config, bytes, rows.data());
    Values table = random_values(embedding_rows(config) * config.hidden, 11);
    const Values d_x = random_values(config.sequence_length * config.hidden, 12);
    Values x(d_x.size()), d_table(table.size(), 99.0f);
    const EmbeddingGrad grad{rows.data(), d_x.data(), config.sequence_length, d_table.data()};
    embed_backward(config, grad, 0, 5);
    embed_backward(config, grad, 5, 8);
    const auto loss = [&] {
        embed(config, table.data(), rows.data(), x.data());
        return weighted_sum(x, d_x);
    };
    expect_gradient(table, loss, d_table);
}

}  // namespace
}  // namespace mok::train
