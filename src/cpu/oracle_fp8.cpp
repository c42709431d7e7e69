#include "cpu/oracle_fp8.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "cpu/hopper_sums.h"

namespace mok::oracle {
namespace {

using Eigen::Index;

constexpr double kE4m3Largest = 448.0;
constexpr Index kChunk = 128;  // of K, that a scale of Fp8Block covers

bool is_mxfp8(Quantisation recipe) {
    return recipe == Quantisation::Mxfp8;
}

// Rounded to `digits` fraction bits, as an integer is rounded by `round`; exponents from `least`
// up.
double rounded(double value, int digits, int least, const std::function<double(double)>& round) {
    if (value == 0.0 || !std::isfinite(value)) return value;
    const double step = std::ldexp(1.0, std::max(std::ilogb(value), least) - digits);
    return round(value / step) * step;
}
double nearest_even(double value) {
    return std::nearbyint(value);
}
double away_from_zero(double value) {
    return value < 0 ? std::floor(value) : std::ceil(value);
}
double toward_zero(double value) {
    return std::trunc(value);
}

double bf16(double value) {
    const double to = rounded(value, 7, -126, nearest_even);
    return std::abs(to) >= 0x1p128 ? std::copysign(std::numeric_limits<double>::infinity(), to)
                                   : to;
}
Matrix bf16(Matrix values) {
    return values.unaryExpr([](double v) { return bf16(v); });
}

double e4m3(double value, const std::function<double(double)>& round = nearest_even) {
    return std::clamp(rounded(value, 3, -6, round), -kE4m3Largest, kE4m3Largest);
}

// The scale of a block with this largest size.
double scale_of(double amax, Quantisation recipe) {
    if (!is_mxfp8(recipe)) return static_cast<float>(amax / kE4m3Largest);
    int k = -127;
    while (amax > std::ldexp(kE4m3Largest, k)) ++k;
    return std::ldexp(1.0, k);
}

// What FP8 holds of a value in a block with this scale.
double held(double value, double scale, Quantisation recipe,
            const std::function<double(double)>& round = nearest_even) {
    if (scale == 0.0) return value;
    const double element = e4m3(static_cast<float>(value / scale), round);
    return is_mxfp8(recipe) ? bf16(element * scale) : element * scale;
}

Index block_length(Quantisation recipe) {
    return is_mxfp8(recipe) ? 32 : kChunk;
}

double amax_of(const Eigen::Ref<const Matrix>& block) {
    double amax = 0.0;
    for (Index r = 0; r < block.rows(); ++r) {
        for (Index c = 0; c < block.cols(); ++c) {
            if (!std::isfinite(block(r, c))) return std::numeric_limits<double>::quiet_NaN();
            amax = std::max(amax, std::abs(block(r, c)));
        }
    }
    return amax;
}

// An operand of a product, [outer, K]: the values that FP8 holds; and where sums are Hopper's the
// elements and their scales, a column of these for every chunk of K.
struct Operand {
    Matrix values, scales;
    std::vector<float> elements;     // [outer, K rounded up to a chunk]
    std::vector<int32_t> exponents;  // of them
    Index padded = 0;
};

// `rows` rows have one scale, each a block of K.
Operand operand(const Matrix& from, Quantisation recipe, Index rows) {
    Operand to;
    to.values = in_blocks(from, recipe, rows, block_length(recipe));
    if (recipe != Quantisation::Fp8BlockOnHopper) return to;
    const Index chunks = (from.cols() + kChunk - 1) / kChunk;
    to.padded = chunks * kChunk;
    to.scales = Matrix::Zero(from.rows(), chunks);
    to.elements.assign(from.rows() * to.padded, 0.0f);
    to.exponents.assign(from.rows() * to.padded, hopper_exponent(0.0f));
    for (Index r = 0; r < from.rows(); r += rows) {
        const Index num = std::min(rows, from.rows() - r);
        for (Index c = 0; c < chunks; ++c) {
            const Index begin = c * kChunk, cols = std::min(kChunk, from.cols() - begin);
            const double amax = amax_of(from.block(r, begin, num, cols));
            const double scale = std::isnan(amax) ? amax : scale_of(amax, recipe);
            for (Index i = r; i < r + num; ++i) {
                to.scales(i, c) = scale;
                if (std::isnan(scale) || scale == 0.0) continue;
                for (Index k = begin; k < begin + cols; ++k) {
                    const auto element = static_cast<float>(to.values(i, k) / scale);
                    to.elements[i * to.padded + k] = element;
                    to.exponents[i * to.padded + k] = hopper_exponent(element);
                }
            }
        }
    }
    return to;
}
// Activations, K along their rows or along their columns.
Operand by_rows(const Matrix& values, Quantisation recipe) {
    return operand(values, recipe, 1);
}
Operand by_columns(const Matrix& values, Quantisation recipe) {
    return operand(values.transpose(), recipe, 1);
}
// A weight as an operand whose K runs along its columns, or along its rows.
Operand weight_by_rows(const ConstView& weight, Quantisation recipe) {
    return operand(weight, recipe, is_mxfp8(recipe) ? 1 : kChunk);
}
Operand weight_by_columns(const ConstView& weight, Quantisation recipe) {
    return operand(weight.transpose(), recipe, is_mxfp8(recipe) ? 1 : kChunk);
}

// a b^T.
Matrix product(const Operand& a, const Operand& b) {
    if (a.padded == 0) return a.values * b.values.transpose();
    Matrix to = Matrix::Zero(a.values.rows(), b.values.rows());
    for (Index i = 0; i < to.rows(); ++i) {
        for (Index j = 0; j < to.cols(); ++j) {
            const Index from_a = i * a.padded, from_b = j * b.padded;
            for (Index c = 0; c < a.scales.cols(); ++c) {
                const Index k = c * kChunk;
                const float sum =
                    hopper_sum({&a.elements[from_a + k], &a.exponents[from_a + k]},
                               {&b.elements[from_b + k], &b.exponents[from_b + k]}, kChunk);
                to(i, j) += sum * (a.scales(i, c) * b.scales(j, c));
            }
        }
    }
    return to;
}

// Gate or up as the backward finds it: rounded to BF16, then FP8 by rows, neither across a limit.
Matrix saved(const Matrix& values, const std::function<bool(double)>& beyond, Quantisation recipe) {
    Matrix to = values;
    for (Index i = 0; i < to.size(); ++i) {
        double& v = to.data()[i];
        const bool was_beyond = beyond(v);
        v = bf16(v);
        if (beyond(v) == was_beyond) continue;
        const double step = std::copysign(std::ldexp(1.0, std::ilogb(v) - 7), v);
        v += was_beyond ? step : -step;
    }
    for (Index r = 0; r < to.rows(); ++r) {
        for (Index c = 0; c < to.cols(); c += block_length(recipe)) {
            auto block = to.block(r, c, 1, std::min(block_length(recipe), to.cols() - c));
            const double amax = amax_of(block);
            const double scale = scale_of(amax, recipe);
            for (Index i = 0; i < block.cols(); ++i) {
                const double v = block(0, i);
                block(0, i) = std::isnan(amax) ? amax : held(v, scale, recipe);
                if (beyond(v) && !beyond(block(0, i))) {
                    block(0, i) = held(v, scale, recipe, away_from_zero);
                } else if (!beyond(v) && beyond(block(0, i))) {
                    block(0, i) = held(v, scale, recipe, toward_zero);
                }
                if (std::isnan(amax)) block(0, i) = amax;
            }
        }
    }
    return to;
}

}  // namespace

Matrix in_blocks(Matrix values, Quantisation recipe, Index rows, Index cols) {
    for (Index r = 0; r < values.rows(); r += rows) {
        for (Index c = 0; c < values.cols(); c += cols) {
            auto block = values.block(r, c, std::min(rows, values.rows() - r),
                                      std::min(cols, values.cols() - c));
            const double amax = amax_of(block);
            const double scale = std::isnan(amax) ? amax : scale_of(amax, recipe);
            block = block.unaryExpr(
                [&](double v) { return std::isnan(amax) ? amax : held(v, scale, recipe); });
        }
    }
    return values;
}

MlpRows mlp_forward_fp8(const Mlp<ConstView>& mlp, const Matrix& x, const Activation& act,
                        Quantisation recipe) {
    const Operand x8 = by_rows(x, recipe);
    MlpRows rows;
    rows.gate = product(x8, weight_by_rows(mlp.gate, recipe));
    rows.up = product(x8, weight_by_rows(mlp.up, recipe));
    if (mlp.gate_bias.rows() != 0) rows.gate.rowwise() += mlp.gate_bias.row(0);
    if (mlp.up_bias.rows() != 0) rows.up.rowwise() += mlp.up_bias.row(0);
    rows.hidden = rows.gate.binaryExpr(
        rows.up, [&act](double gate, double up) { return activate(gate, up, act); });
    rows.y = product(by_rows(bf16(rows.hidden), recipe), weight_by_rows(mlp.down, recipe));
    if (mlp.down_bias.rows() != 0) rows.y.rowwise() += mlp.down_bias.row(0);
    return rows;
}

Matrix mlp_backward_fp8(const Mlp<ConstView>& mlp, const Matrix& x, const Matrix& d_y,
                        const Eigen::VectorXd& weights, const Activation& act, Quantisation recipe,
                        Fp8Gradients& grad) {
    const MlpRows rows = mlp_forward_fp8(mlp, x, act, recipe);
    const double limit = act.limit;
    const Matrix gate = saved(
        rows.gate, [limit](double v) { return v > limit; }, recipe);
    const Matrix up = saved(
        rows.up, [limit](double v) { return std::abs(v) > limit; }, recipe);

    const Matrix d_hidden_raw = product(by_rows(d_y, recipe), weight_by_columns(mlp.down, recipe));
    Matrix hidden(gate.rows(), gate.cols()), d_gate = hidden, d_up = hidden;
    for (Index r = 0; r < gate.rows(); ++r) {
        for (Index i = 0; i < gate.cols(); ++i) {
            const ActivationGradient d =
                activate_backward(gate(r, i), up(r, i), weights[r] * d_hidden_raw(r, i), act);
            hidden(r, i) = activate(gate(r, i), up(r, i), act);
            d_gate(r, i) = d.gate;
            d_up(r, i) = d.up;
        }
    }
    grad.d_weights = d_hidden_raw.cwiseProduct(hidden).rowwise().sum();
    if (mlp.down_bias.rows() != 0) grad.d_weights += d_y * mlp.down_bias.row(0).transpose();

    d_gate = bf16(d_gate);
    d_up = bf16(d_up);
    const Matrix w_hidden = bf16(weights.asDiagonal() * hidden);
    const Operand x_t = by_columns(x, recipe);
    grad.mlp.gate = product(by_columns(d_gate, recipe), x_t);
    grad.mlp.up = product(by_columns(d_up, recipe), x_t);
    grad.mlp.down = product(by_columns(d_y, recipe), by_columns(w_hidden, recipe));
    if (grad.mlp.gate_bias.rows() != 0) grad.mlp.gate_bias = d_gate.colwise().sum();
    if (grad.mlp.up_bias.rows() != 0) grad.mlp.up_bias = d_up.colwise().sum();
    if (grad.mlp.down_bias.rows() != 0) grad.mlp.down_bias = weights.transpose() * d_y;
    return product(by_rows(d_gate, recipe), weight_by_columns(mlp.gate, recipe)) +
           product(by_rows(d_up, recipe), weight_by_columns(mlp.up, recipe));
}

}  // namespace mok::oracle
