#pragma once

#include "cpu/oracle_mlp.h"

// The MLP of an expert whose operands are in FP8, in FP64: every value that docs/precision.md
// quantises is replaced by the value that FP8 holds of it, at the same points and after the same
// rounding to BF16; everything between is exact.
namespace mok::oracle {

// The values that blocks of `rows` x `cols` elements hold, each with a scale of its own. Mxfp8's
// are rounded to BF16, which changes values below 2^-130 only.
Matrix in_blocks(Matrix values, Quantisation recipe, Eigen::Index rows, Eigen::Index cols);

MlpRows mlp_forward_fp8(const Mlp<ConstView>& mlp, const Matrix& x, const Activation& act,
                        Quantisation recipe);

// d_y is the output's gradient, unscaled; weights [n] scale y. Writes the weights' gradients and
// those of `weights`; returns d_x [n, H].
struct Fp8Gradients {
    Mlp<View> mlp;
    Eigen::VectorXd d_weights;  // [n]
};
Matrix mlp_backward_fp8(const Mlp<ConstView>& mlp, const Matrix& x, const Matrix& d_y,
                        const Eigen::VectorXd& weights, const Activation& act, Quantisation recipe,
                        Fp8Gradients& grad);

}  // namespace mok::oracle
