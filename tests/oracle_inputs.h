#pragma once

// Random inputs of the oracle, and its forward equations written out as scalar loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cpu/oracle.h"

namespace mok_test {

using mok::oracle::Inputs;
using Tensor = std::vector<double>;

inline Tensor random_tensor(std::mt19937& rng, int64_t count, double deviation) {
    std::normal_distribution<double> normal(0.0, deviation);
    Tensor tensor(static_cast<size_t>(count));
    for (double& value : tensor) value = normal(rng);
    return tensor;
}

struct Options {
    int64_t tokens = 6, hidden = 5, intermediate = 3, experts = 4, top_k = 2, shared = 0;
    bool biases = false;
    bool shared_weights = false;
    mok::Activation activation;
    double gate_up_deviation = 0.6;  // of the elements of the gate and up projections
};

inline Inputs random_inputs(const Options& options, unsigned seed) {
    std::mt19937 rng(seed);
    Inputs in;
    in.tokens = options.tokens;
    in.hidden = options.hidden;
    in.intermediate = options.intermediate;
    in.experts = options.experts;
    in.top_k = options.top_k;
    in.shared_intermediate = options.shared;
    in.activation = options.activation;
    const int64_t matrix = in.experts * in.intermediate * in.hidden;
    const int64_t shared_matrix = in.shared_intermediate * in.hidden;
    in.x = random_tensor(rng, in.tokens * in.hidden, 1.0);
    in.topk_weights = random_tensor(rng, in.tokens * in.top_k, 0.7);
    in.gate = random_tensor(rng, matrix, options.gate_up_deviation);
    in.up = random_tensor(rng, matrix, options.gate_up_deviation);
    in.down = random_tensor(rng, matrix, 0.6);
    in.shared_gate = random_tensor(rng, shared_matrix, options.gate_up_deviation);
    in.shared_up = random_tensor(rng, shared_matrix, options.gate_up_deviation);
    in.shared_down = random_tensor(rng, shared_matrix, 0.6);
    in.grad_output = random_tensor(rng, in.tokens * in.hidden, 1.0);
    if (options.biases) {
        in.gate_bias = random_tensor(rng, in.experts * in.intermediate, 0.5);
        in.up_bias = random_tensor(rng, in.experts * in.intermediate, 0.5);
        in.down_bias = random_tensor(rng, in.experts * in.hidden, 0.5);
    }
    if (options.shared_weights) in.shared_weights = random_tensor(rng, in.tokens, 1.0);
    // Distinct experts in each token, in random order.
    std::vector<int64_t> experts(static_cast<size_t>(in.experts));
    for (size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<int64_t>(e);
    for (int64_t token = 0; token < in.tokens; ++token) {
        std::shuffle(experts.begin(), experts.end(), rng);
        in.topk_ids.insert(in.topk_ids.end(), experts.begin(), experts.begin() + in.top_k);
    }
    return in;
}

// An index into a tensor, kept signed in the tests' arithmetic.
inline double at(const Tensor& tensor, int64_t index) {
    return tensor.at(static_cast<size_t>(index));
}
inline double at_or_zero(const Tensor& tensor, int64_t index) {
    return tensor.empty() ? 0.0 : at(tensor, index);
}

// The h-th element of one MLP's y for x[token], written out from the equations. `first` is the
// offset of its matrices, `width` its intermediate size, `biases` the index of its bias rows.
struct ScalarMlp {
    const Inputs& in;
    const Tensor &gate, &up, &down;
    const Tensor &gate_bias, &up_bias, &down_bias;
    int64_t idx, width;

    double product(const Tensor& weights, const Tensor& bias, int64_t token, int64_t i) const {
        double sum = at_or_zero(bias, idx * width + i);
        for (int64_t h = 0; h < in.hidden; ++h) {
            sum += at(weights, (idx * width + i) * in.hidden + h) * at(in.x, token * in.hidden + h);
        }
        return sum;
    }
    double y(int64_t token, int64_t h) const {
        const double limit = in.activation.limit;
        double sum = at_or_zero(down_bias, idx * in.hidden + h);
        for (int64_t i = 0; i < width; ++i) {
            const double g = std::min(product(gate, gate_bias, token, i), limit);
            const double u = std::clamp(product(up, up_bias, token, i), -limit, limit);
            const double hidden =
                g / (1.0 + std::exp(-double(in.activation.alpha) * g)) * (u + in.activation.beta);
            sum += at(down, (idx * in.hidden + h) * width + i) * hidden;
        }
        return sum;
    }
};

inline double scalar_output(const Inputs& in, int64_t token, int64_t h) {
    static const Tensor kAbsent;
    double sum = 0.0;
    for (int64_t choice = 0; choice < in.top_k; ++choice) {
        const int64_t route = token * in.top_k + choice;
        const int64_t id = in.topk_ids.at(static_cast<size_t>(route));
        if (id < 0) continue;
        const ScalarMlp expert{in,         in.gate,      in.up, in.down,        in.gate_bias,
                               in.up_bias, in.down_bias, id,    in.intermediate};
        sum += at(in.topk_weights, route) * expert.y(token, h);
    }
    if (in.shared_intermediate == 0) return sum;
    const ScalarMlp shared{
        in, in.shared_gate,        in.shared_up, in.shared_down, kAbsent, kAbsent, kAbsent,
        0,  in.shared_intermediate};
    const double weight = in.shared_weights.empty() ? 1.0 : at(in.shared_weights, token);
    return sum + weight * shared.y(token, h);
}

inline void expect_forward_is_scalar(const Inputs& in) {
    const mok::oracle::Outputs found = mok::oracle::forward(in);
    ASSERT_EQ(found.out.size(), static_cast<size_t>(in.tokens * in.hidden));
    for (int64_t token = 0; token < in.tokens; ++token) {
        for (int64_t h = 0; h < in.hidden; ++h) {
            const double want = scalar_output(in, token, h);
            EXPECT_NEAR(at(found.out, token * in.hidden + h), want, 1e-11 * (1 + std::abs(want)))
                << "token " << token << ", column " << h;
        }
    }
}

}  // namespace mok_test
