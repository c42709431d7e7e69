#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/common/random.h"
#include "cli/train/batch.h"
#include "cli/train/embedding.h"
#include "cli/train/optimizer.h"
#include "cli/train/parameters.h"
#include "cli/train/sequence_pass.h"

// The whole model's gradients against central differences, with a layer in its place whose
// mathematics is one line: expert e multiplies by e + 1.
namespace mok::train {
namespace {

Config small() {
    Config config;
    config.num_experts = 4;
    config.top_k = 2;
    config.hidden = 16;
    config.intermediate = 8;
    config.window = 2;
    config.ngram_order = 2;
    config.ngram_rows = 16;
    config.num_sequences = 8;
    config.balance = 0.5;
    return config;
}

class TrainGradients : public testing::Test {
  protected:
    TrainGradients() : config(small()), parameters(config), batch(config, parameters) {
        // Larger embeddings and router weights, so that every part of the model matters.
        for (const Weight weight : {Weight::Embedding, Weight::Router}) {
            for (int64_t i = 0; i < parameters.info(weight).size; ++i) {
                parameters.value(weight)[i] *= 20.0f;
            }
        }
        const int64_t size = config.context_bytes() + config.sequence_length;
        for (int64_t s = 0; s < config.num_sequences; ++s) {
            std::vector<uint8_t> bytes(size);
            for (int64_t i = 0; i < size; ++i) bytes[i] = 'a' + cli::random_at(3, s, i) % 6;
            sequences.push_back(bytes);
        }
    }

    void layer() {
        for (int64_t t = 0; t < config.tokens_per_step(); ++t) {
            float factor = 0.0f;
            for (int c = 0; c < 2; ++c) {
                factor += batch.router_weights[t * 2 + c] * (batch.ids[t * 2 + c] + 1);
            }
            for (int i = 0; i < 16; ++i) batch.y[t * 16 + i] = factor * batch.x_norm[t * 16 + i];
        }
    }

    void layer_backward() {
        for (int64_t t = 0; t < config.tokens_per_step(); ++t) {
            float factor = 0.0f, along = 0.0f;
            for (int i = 0; i < 16; ++i) along += batch.d_y[t * 16 + i] * batch.x_norm[t * 16 + i];
            for (int c = 0; c < 2; ++c) {
                factor += batch.router_weights[t * 2 + c] * (batch.ids[t * 2 + c] + 1);
                batch.d_router_weights[t * 2 + c] = along * (batch.ids[t * 2 + c] + 1);
            }
            for (int i = 0; i < 16; ++i)
                batch.d_x_norm[t * 16 + i] = factor * batch.d_y[t * 16 + i];
        }
    }

    Balance balance() const {
        return load_balance({config.sequence_length, config.num_experts, config.top_k},
                            {batch.expert_count, batch.prob_sum, config.tokens_per_step()},
                            config.balance);
    }

    double loss() {
        SequencePass pass(config, parameters, batch);
        for (int64_t s = 0; s < config.num_sequences; ++s) pass.before_layer(s, sequences[s]);
        layer();
        double nats = 0.0;
        for (int64_t s = 0; s < config.num_sequences; ++s) {
            pass.after_layer(s);
            nats += batch.loss[s];
        }
        return nats / static_cast<double>(config.tokens_per_step()) + balance().loss;
    }

    void gradients() {
        SequencePass pass(config, parameters, batch);
        for (int64_t s = 0; s < config.num_sequences; ++s) pass.before_layer(s, sequences[s]);
        layer();
        const float scale = 1.0f / static_cast<float>(config.tokens_per_step());
        for (int64_t s = 0; s < config.num_sequences; ++s) pass.after_layer_with_backward(s, scale);
        layer_backward();
        for (int64_t s = 0; s < config.num_sequences; ++s) pass.before_layer_backward(s, balance());
    }

    // Every `stride`-th element of the weight. A difference across which a token chooses other
    // experts says nothing (the loss jumps there) and is left out.
    void expect_gradient(Weight weight, const float* gradient, int64_t stride) {
        const float step = 1.0f / 256;
        const std::vector<int32_t> ids = batch.ids;
        int64_t checked = 0, asked = 0;
        double largest = 0.0;
        for (int64_t i = 0; i < parameters.info(weight).size; i += stride) {
            float& value = parameters.value(weight)[i];
            const float kept = value;
            value = kept + step;
            const double above = loss();
            bool same = batch.ids == ids;
            value = kept - step;
            const double below = loss();
            same = same && batch.ids == ids;
            value = kept;
            ++asked;
            if (!same) continue;
            ++checked;
            const double expected = (above - below) / (2.0 * step);
            largest = std::max(largest, std::abs(expected));
            EXPECT_NEAR(gradient[i], expected, 1e-4 + 0.01 * std::abs(expected))
                << parameters.info(weight).name << " element " << i;
        }
        EXPECT_GE(checked * 4, asked) << parameters.info(weight).name;
        EXPECT_GT(largest, 1e-3) << parameters.info(weight).name;
    }

    Config config;
    Parameters parameters;
    Batch batch;
    std::vector<std::vector<uint8_t>> sequences;
};

TEST_F(TrainGradients, DenseWeights) {
    gradients();
    std::vector<float> sum(batch.dense_stride, 0.0f);
    for (int64_t s = 0; s < config.num_sequences; ++s) {
        for (int64_t i = 0; i < batch.dense_stride; ++i) {
            sum[i] += batch.dense_gradients[s * batch.dense_stride + i];
        }
    }
    const auto of = [&](Weight weight) { return sum.data() + parameters.info(weight).offset; };
    expect_gradient(Weight::MoeNorm, of(Weight::MoeNorm), 1);
    expect_gradient(Weight::HeadNorm, of(Weight::HeadNorm), 1);
    expect_gradient(Weight::Router, of(Weight::Router), 1);
    expect_gradient(Weight::Head, of(Weight::Head), 53);
}

TEST_F(TrainGradients, Embedding) {
    gradients();
    std::vector<float> gradient(parameters.info(Weight::Embedding).size);
    embed_backward(config,
                   {batch.rows.data(), batch.d_y.data(), config.tokens_per_step(), gradient.data()},
                   0, config.hidden);
    // Rows of "a" to "f" at offset 0, 97 to 102, and at offset 1 hold the gradients.
    expect_gradient(Weight::Embedding, gradient.data(), 16 * 3 + 1);
}

}  // namespace
}  // namespace mok::train
