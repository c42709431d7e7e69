// The oracle against hand-computed layers and a scalar transcription of the equations; what NaN
// reaches; what is refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "cpu/oracle.h"
#include "oracle_inputs.h"

namespace {

using namespace mok_test;
using mok::oracle::Gradients;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A layer of one element each: x = 1, gate 1, up 2, down 3, weight 0.5.
Inputs one_element() {
    Inputs in;
    in.tokens = in.hidden = in.intermediate = in.experts = in.top_k = 1;
    in.x = {1.0};
    in.topk_ids = {0};
    in.topk_weights = {0.5};
    in.gate = {1.0};
    in.up = {2.0};
    in.down = {3.0};
    in.grad_output = {1.0};
    return in;
}

TEST(Oracle, OneElementByHand) {
    // sigmoid(1) = 0.7310585786300049 = silu(1); silu'(1) = 0.9276705118714867.
    const Inputs in = one_element();
    EXPECT_NEAR(mok::oracle::forward(in).out[0], 0.5 * 3 * 2 * 0.7310585786300049, 1e-15);
    const Gradients g = mok::oracle::backward(in);
    EXPECT_NEAR(g.topk_weights[0], 6 * 0.7310585786300049, 1e-15);
    EXPECT_NEAR(g.down[0], 0.5 * 2 * 0.7310585786300049, 1e-15);
    EXPECT_NEAR(g.up[0], 1.5 * 0.7310585786300049, 1e-15);
    EXPECT_NEAR(g.gate[0], 1.5 * 2 * 0.9276705118714867, 1e-15);
    EXPECT_NEAR(g.x[0], 3 * 0.9276705118714867 + 2 * 1.5 * 0.7310585786300049, 1e-14);
    EXPECT_NEAR(g.topk_weights_rms, 6 * 0.7310585786300049, 1e-14);  // H = 1: no cancellation
}

TEST(Oracle, TwoTokensTwoExpertsByHand) {
    // All gates are 0, where silu is 0 and its slope 1/2: only d_gate survives in the weights.
    Inputs in;
    in.tokens = in.hidden = in.experts = 2;
    in.intermediate = in.top_k = 1;
    in.x = {1, 2, 3, 4};
    in.topk_ids = {1, 0};
    in.topk_weights = {10, 100};
    in.gate = {0, 0, 0, 0};
    in.up = {1, 0, 0, 1};      // expert 0 takes x[0], expert 1 x[1]
    in.down = {1, -1, 2, -3};  // columns of expert 0 and 1
    in.grad_output = {1, 0, 0, 1};
    const mok::oracle::Outputs result = mok::oracle::forward(in);
    EXPECT_EQ(result.out, (Tensor{0, 0, 0, 0}));
    EXPECT_EQ(result.tokens_per_expert, (std::vector<int64_t>{1, 1}));
    const Gradients g = mok::oracle::backward(in);
    // Token 0, expert 1: d_hidden = 10*2, up = 2, d_gate = 20*2/2 = 20, so d_Wg = 20*(1, 2).
    // Token 1, expert 0: d_hidden = 100*-1, up = 3, d_gate = -100*3/2 = -150, times (3, 4).
    EXPECT_EQ(g.gate, (Tensor{-450, -600, 20, 40}));
    EXPECT_EQ(g.up, (Tensor{0, 0, 0, 0}));
    EXPECT_EQ(g.down, (Tensor{0, 0, 0, 0}));
    EXPECT_EQ(g.x, (Tensor{0, 0, 0, 0}));
    EXPECT_EQ(g.topk_weights, (Tensor{0, 0}));
}

TEST(Oracle, SizeOfAWeightGradientThatCancels) {
    // y = 2 silu(1) * (3, 0, 0, 4) is orthogonal to d_y: the gradient is 0, |d_y| |y| / sqrt(4)
    // not.
    Inputs in = one_element();
    in.hidden = 4;
    in.x = {1, 0, 0, 0};
    in.gate = {1, 0, 0, 0};
    in.up = {2, 0, 0, 0};
    in.down = {3, 0, 0, 4};
    in.grad_output = {0, 1, 0, 0};
    const Gradients g = mok::oracle::backward(in);
    EXPECT_EQ(g.topk_weights[0], 0.0);
    EXPECT_NEAR(g.topk_weights_rms, 5 * 2 * 0.7310585786300049 / 2, 1e-14);
    EXPECT_EQ(g.shared_weights_rms, 0.0);
}

TEST(Oracle, LimitsByHand) {
    Inputs in = one_element();
    in.activation = {7.0f, 1.702f, 1.0f};
    in.gate = {10.0};
    in.up = {-9.0};
    const double s = 1.0 / (1.0 + std::exp(-double(1.702f) * 7.0));
    EXPECT_NEAR(mok::oracle::forward(in).out[0], 0.5 * 3 * 7 * s * (-7 + 1), 1e-12);
    const Gradients outside = mok::oracle::backward(in);
    EXPECT_EQ(outside.gate[0], 0.0);
    EXPECT_EQ(outside.up[0], 0.0);
    EXPECT_EQ(outside.x[0], 0.0);
    EXPECT_NEAR(outside.down[0], 0.5 * 7 * s * -6, 1e-12);

    // At the limits the gradient passes; one step beyond it does not; the gate has no lower limit.
    for (const double side : {-7.0, 7.0}) {
        in.gate = {7.0};
        in.up = {side};
        const Gradients at_limit = mok::oracle::backward(in);
        const double slope = s + double(1.702f) * 7 * s * (1 - s);
        EXPECT_NEAR(at_limit.gate[0], 1.5 * (side + 1) * slope, 1e-12);
        EXPECT_NEAR(at_limit.up[0], 1.5 * 7 * s, 1e-12);
        in.gate = {std::nextafter(7.0, 8.0)};
        in.up = {std::nextafter(side, 2 * side)};
        const Gradients beyond = mok::oracle::backward(in);
        EXPECT_EQ(beyond.gate[0], 0.0);
        EXPECT_EQ(beyond.up[0], 0.0);
    }
    in.gate = {-8.0};
    in.up = {0.0};
    EXPECT_NE(mok::oracle::backward(in).gate[0], 0.0);
}

// Wider than any blocking of the matrix products, so that blocks and their edges are met.
TEST(Oracle, WideLayerIsTheScalarTranscription) {
    Options options;
    options.tokens = 37;
    options.hidden = 70;
    options.intermediate = 41;
    options.shared = 19;
    options.biases = true;
    options.gate_up_deviation = 0.1;
    expect_forward_is_scalar(random_inputs(options, 9));
}

TEST(Oracle, MaskedChoiceIgnoresItsWeight) {
    Inputs in = random_inputs({}, 10);
    in.topk_ids[2] = -1;
    in.topk_weights[2] = 0.25;
    const Tensor out = mok::oracle::forward(in).out;
    const Gradients g = mok::oracle::backward(in);
    for (const double weight : {kNan, kInf, -1e30}) {
        in.topk_weights[2] = weight;
        EXPECT_EQ(mok::oracle::forward(in).out, out);
        const Gradients again = mok::oracle::backward(in);
        EXPECT_EQ(again.x, g.x);
        EXPECT_EQ(again.topk_weights, g.topk_weights);
        EXPECT_EQ(again.down, g.down);
        EXPECT_EQ(again.topk_weights[2], 0.0);
    }
}

// Whether every element of rows [first, first + count) of `width` is finite.
bool finite(const Tensor& tensor, int64_t width, int64_t first, int64_t count) {
    return std::all_of(tensor.begin() + first * width, tensor.begin() + (first + count) * width,
                       [](double v) { return std::isfinite(v); });
}
bool all_nan(const Tensor& tensor, int64_t width, int64_t row) {
    return std::all_of(tensor.begin() + row * width, tensor.begin() + (row + 1) * width,
                       [](double v) { return std::isnan(v); });
}

TEST(Oracle, NanStaysWhereMathematicsTakesIt) {
    Options options;
    options.tokens = 21;
    options.hidden = 17;
    options.intermediate = 9;
    Inputs in = random_inputs(options, 11);
    in.x[4 * 17 + 3] = kNan;  // token 4
    in.topk_ids[8] = 1;
    in.topk_ids[9] = 3;
    const Tensor out = mok::oracle::forward(in).out;
    const Gradients g = mok::oracle::backward(in);
    for (int64_t token = 0; token < 21; ++token) {
        const bool reached = token == 4;
        EXPECT_EQ(all_nan(out, 17, token), reached) << token;
        EXPECT_EQ(finite(out, 17, token, 1), !reached) << token;
        EXPECT_EQ(all_nan(g.x, 17, token), reached) << token;
        EXPECT_EQ(finite(g.x, 17, token, 1), !reached) << token;
        EXPECT_EQ(finite(g.topk_weights, 2, token, 1), !reached) << token;
    }
    for (int64_t expert = 0; expert < 4; ++expert) {
        const bool reached = expert == 1 || expert == 3;
        EXPECT_EQ(finite(g.gate, 9 * 17, expert, 1), !reached) << expert;
        EXPECT_EQ(finite(g.up, 9 * 17, expert, 1), !reached) << expert;
        EXPECT_EQ(finite(g.down, 9 * 17, expert, 1), !reached) << expert;
    }

    // With all choices of the token masked it reaches nothing.
    in.topk_ids[8] = in.topk_ids[9] = -1;
    EXPECT_TRUE(finite(mok::oracle::forward(in).out, 17, 0, 21));
    EXPECT_TRUE(finite(mok::oracle::backward(in).gate, 9 * 17, 0, 4));
}

TEST(Oracle, ZeroOperandsAreNotSkipped) {
    Inputs in = one_element();
    in.topk_weights = {0.0};
    in.x = {kNan};
    EXPECT_TRUE(std::isnan(mok::oracle::forward(in).out[0]));
    in.x = {1.0};
    in.topk_weights = {kNan};
    in.down = {0.0};
    EXPECT_TRUE(std::isnan(mok::oracle::forward(in).out[0]));
    in.down = {kInf};
    in.topk_weights = {1.0};
    EXPECT_EQ(mok::oracle::forward(in).out[0], kInf);
}

TEST(Oracle, NanPassesTheLimits) {
    Inputs in = one_element();
    in.activation.limit = 7.0f;
    in.gate_bias = {kNan};
    EXPECT_TRUE(std::isnan(mok::oracle::forward(in).out[0]));
    in.gate_bias = {0.0};
    in.up_bias = {kNan};
    EXPECT_TRUE(std::isnan(mok::oracle::forward(in).out[0]));
}

TEST(Oracle, EmptyExpertsHaveZeroGradients) {
    Options options;
    options.biases = true;
    Inputs in = random_inputs(options, 12);
    in.topk_ids = {2, 2, 2, -1, 2, 2, 2, 2, -1, -1, 2, 2};
    in.x[0] = kNan;  // must not reach the others
    const Gradients g = mok::oracle::backward(in);
    for (const size_t expert : {0u, 1u, 3u}) {
        for (size_t i = 0; i < 15; ++i) {
            EXPECT_EQ(g.gate[expert * 15 + i], 0.0);
            EXPECT_EQ(g.up[expert * 15 + i], 0.0);
            EXPECT_EQ(g.down[expert * 15 + i], 0.0);
        }
        for (size_t i = 0; i < 3; ++i) EXPECT_EQ(g.gate_bias[expert * 3 + i], 0.0);
        for (size_t i = 0; i < 5; ++i) EXPECT_EQ(g.down_bias[expert * 5 + i], 0.0);
    }
}

TEST(Oracle, NoTokens) {
    Options options;
    options.tokens = 0;
    options.shared = 2;
    options.biases = true;
    const Inputs in = random_inputs(options, 13);
    EXPECT_TRUE(mok::oracle::forward(in).out.empty());
    const Gradients g = mok::oracle::backward(in);
    EXPECT_EQ(g.gate, Tensor(in.gate.size(), 0.0));
    EXPECT_EQ(g.shared_down, Tensor(in.shared_down.size(), 0.0));
    EXPECT_EQ(g.topk_weights_rms, 0.0);
}

void expect_refused(const std::function<void(Inputs&)>& spoil, const std::string& words) {
    Inputs in = random_inputs({}, 14);
    spoil(in);
    try {
        mok::oracle::backward(in);
        ADD_FAILURE() << "accepted; expected a refusal with: " << words;
    } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(Oracle, RefusesWhatItCannotCompute) {
    expect_refused([](Inputs& in) { in.topk_ids[5] = 4; }, "topk_ids[2,1] is 4");
    expect_refused([](Inputs& in) { in.topk_ids[0] = -2; }, "topk_ids[0,0] is -2");
    expect_refused([](Inputs& in) { in.down.pop_back(); }, "down holds 59 elements, expected 60");
    expect_refused([](Inputs& in) { in.up_bias = {1.0}; }, "up_bias holds 1");
    expect_refused([](Inputs& in) { in.grad_output.clear(); }, "grad_output holds 0");
    expect_refused([](Inputs& in) { in.tokens = -1; }, "tokens is -1");
    expect_refused([](Inputs& in) { in.shared_gate = {1.0}; }, "shared_gate holds 1");
}

}  // namespace
