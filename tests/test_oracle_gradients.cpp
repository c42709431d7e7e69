// The oracle's gradients of every input tensor against central finite differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpu/oracle.h"
#include "oracle_inputs.h"

namespace {

using namespace mok_test;
using mok::oracle::Gradients;

double loss(const Inputs& in) {
    const Tensor out = mok::oracle::forward(in).out;
    double sum = 0.0;
    for (size_t i = 0; i < out.size(); ++i) sum += in.grad_output[i] * out[i];
    return sum;
}

// The step 1e-5 leaves a truncation error of about 1e-10 and a rounding error of about 1e-10.
void expect_difference_quotients(Inputs in, const char* name, Tensor Inputs::*tensor,
                                 Tensor Gradients::*gradient) {
    const Tensor found = mok::oracle::backward(in).*gradient;
    ASSERT_EQ(found.size(), (in.*tensor).size()) << name;
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < found.size(); ++i) {
        double& value = (in.*tensor)[i];
        const double kept = value;
        value = kept + kStep;
        const double above = loss(in);
        value = kept - kStep;
        const double below = loss(in);
        value = kept;
        const double want = (above - below) / (2 * kStep);
        EXPECT_NEAR(found[i], want, 1e-6 * (1 + std::abs(want))) << name << "[" << i << "]";
    }
}

void expect_all_gradients(const Inputs& in) {
    expect_forward_is_scalar(in);
    const auto expect = [&in](const char* name, Tensor Inputs::*t, Tensor Gradients::*g) {
        expect_difference_quotients(in, name, t, g);
    };
    expect("x", &Inputs::x, &Gradients::x);
    expect("topk_weights", &Inputs::topk_weights, &Gradients::topk_weights);
    expect("gate", &Inputs::gate, &Gradients::gate);
    expect("up", &Inputs::up, &Gradients::up);
    expect("down", &Inputs::down, &Gradients::down);
    expect("gate_bias", &Inputs::gate_bias, &Gradients::gate_bias);
    expect("up_bias", &Inputs::up_bias, &Gradients::up_bias);
    expect("down_bias", &Inputs::down_bias, &Gradients::down_bias);
    expect("shared_gate", &Inputs::shared_gate, &Gradients::shared_gate);
    expect("shared_up", &Inputs::shared_up, &Gradients::shared_up);
    expect("shared_down", &Inputs::shared_down, &Gradients::shared_down);
    expect("shared_weights", &Inputs::shared_weights, &Gradients::shared_weights);
}

TEST(OracleGradients, Plain) {
    expect_all_gradients(random_inputs({}, 1));
}

TEST(OracleGradients, BiasesSharedExpertAndSharedWeights) {
    Options options;
    options.biases = true;
    options.shared = 4;
    options.shared_weights = true;
    expect_all_gradients(random_inputs(options, 2));
}

TEST(OracleGradients, SharedExpertWithoutWeights) {
    Options options;
    options.shared = 2;
    const Inputs in = random_inputs(options, 3);
    expect_all_gradients(in);
    EXPECT_TRUE(mok::oracle::backward(in).shared_weights.empty());
}

TEST(OracleGradients, ClampedActivationAtItsLimits) {
    Options options;
    options.tokens = 8;
    options.biases = true;
    options.shared = 3;
    options.activation = {7.0f, 1.702f, 1.0f};
    options.gate_up_deviation = 4.0;
    const Inputs in = random_inputs(options, 4);
    // The test means something only where both sides of every limit occur.
    int gate_over = 0, up_over = 0, up_under = 0, inside = 0;
    for (int64_t route = 0; route < in.tokens * in.top_k; ++route) {
        const ScalarMlp expert{in,
                               in.gate,
                               in.up,
                               in.down,
                               in.gate_bias,
                               in.up_bias,
                               in.down_bias,
                               in.topk_ids.at(static_cast<size_t>(route)),
                               in.intermediate};
        for (int64_t i = 0; i < in.intermediate; ++i) {
            const double gate = expert.product(in.gate, in.gate_bias, route / in.top_k, i);
            const double up = expert.product(in.up, in.up_bias, route / in.top_k, i);
            gate_over += gate > 7;
            up_over += up > 7;
            up_under += up < -7;
            inside += gate <= 7 && std::abs(up) <= 7;
        }
    }
    EXPECT_GT(std::min({gate_over, up_over, up_under, inside}), 2);
    expect_all_gradients(in);
}

TEST(OracleGradients, DuplicatesAndMaskedChoices) {
    Options options;
    options.top_k = 3;
    options.biases = true;
    Inputs in = random_inputs(options, 5);
    in.topk_ids = {3, 3, 1, -1, 2, 2, 0, -1, -1, -1, -1, -1, 1, 1, 1, 2, -1, 0};
    expect_all_gradients(in);
    EXPECT_EQ(mok::oracle::forward(in).tokens_per_expert, (std::vector<int64_t>{2, 4, 3, 2}));
    const Gradients g = mok::oracle::backward(in);
    EXPECT_NE(g.topk_weights[0], 0.0);
    EXPECT_EQ(g.topk_weights[0], g.topk_weights[1]);  // the same y
    for (size_t route = 0; route < in.topk_ids.size(); ++route) {
        if (in.topk_ids[route] == -1) {
            EXPECT_EQ(g.topk_weights[route], 0.0);
        }
    }
}

TEST(OracleGradients, OneChoiceAndEveryExpert) {
    Options options;
    options.top_k = 1;
    expect_all_gradients(random_inputs(options, 6));
    options.top_k = options.experts;
    expect_all_gradients(random_inputs(options, 7));
}

TEST(OracleGradients, ZeroAndNegativeWeights) {
    Inputs in = random_inputs({}, 8);
    in.topk_weights[0] = 0.0;
    in.topk_weights[3] = -2.0;
    expect_all_gradients(in);
    EXPECT_NE(mok::oracle::backward(in).topk_weights[0], 0.0);
}

}  // namespace
