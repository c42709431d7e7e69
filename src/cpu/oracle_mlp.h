#pragma once

#include <Eigen/Core>
#include <cmath>

#include "cpu/oracle.h"

// Inside the oracle: the activation and one gated MLP over the rows of its tokens.
namespace mok::oracle {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstView = Eigen::Map<const Matrix>;
using View = Eigen::Map<Matrix>;

inline double sigmoid(double z) {
    return 1.0 / (1.0 + std::exp(-z));
}

// The comparisons are written so that NaN passes through.
inline double limited_gate(double gate, double limit) {
    return gate > limit ? limit : gate;
}
inline double limited_up(double up, double limit) {
    return up > limit ? limit : (up < -limit ? -limit : up);
}

inline double activate(double gate, double up, const Activation& act) {
    const double g = limited_gate(gate, act.limit);
    return g * sigmoid(act.alpha * g) * (limited_up(up, act.limit) + act.beta);
}

struct ActivationGradient {
    double gate;
    double up;
};

inline ActivationGradient activate_backward(double gate, double up, double d_hidden,
                                            const Activation& act) {
    const double alpha = act.alpha;
    const double limit = act.limit;
    const double g = limited_gate(gate, limit);
    const double s = sigmoid(alpha * g);
    const double slope = s + alpha * g * s * (1.0 - s);  // of g * sigmoid(alpha * g)
    return {gate > limit ? 0.0 : d_hidden * (limited_up(up, limit) + act.beta) * slope,
            up > limit || up < -limit ? 0.0 : d_hidden * g * s};
}

// Weights (T = ConstView) or their gradients (T = View): gate and up [W, H], down [H, W], biases
// [1, W], [1, W] and [1, H], or [0, .] where absent.
template <class T>
struct Mlp {
    T gate, up, down;
    T gate_bias, up_bias, down_bias;
};

struct MlpRows {
    Matrix gate, up, hidden;  // [n, W]; gate and up before the limits
    Matrix y;                 // [n, H]
};

}  // namespace mok::oracle
