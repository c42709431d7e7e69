#include "cpu/oracle.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu/oracle_fp8.h"
#include "cpu/oracle_mlp.h"

namespace mok::oracle {
namespace {

// ---- what is refused

void check_size(const char* name, int64_t found, int64_t least) {
    if (found >= least) return;
    throw std::invalid_argument("oracle: " + std::string(name) + " is " + std::to_string(found) +
                                ", expected at least " + std::to_string(least));
}

void check_length(const char* name, size_t found, int64_t expected) {
    if (static_cast<int64_t>(found) == expected) return;
    throw std::invalid_argument("oracle: " + std::string(name) + " holds " + std::to_string(found) +
                                " elements, expected " + std::to_string(expected));
}

void check_optional(const char* name, size_t found, int64_t expected) {
    if (found != 0) check_length(name, found, expected);
}

void check(const Inputs& in) {
    check_size("tokens", in.tokens, 0);
    check_size("hidden", in.hidden, 1);
    check_size("intermediate", in.intermediate, 1);
    check_size("experts", in.experts, 1);
    check_size("top_k", in.top_k, 1);
    check_size("shared_intermediate", in.shared_intermediate, 0);
    const int64_t matrix = in.experts * in.intermediate * in.hidden;
    check_length("x", in.x.size(), in.tokens * in.hidden);
    check_length("topk_ids", in.topk_ids.size(), in.tokens * in.top_k);
    check_length("topk_weights", in.topk_weights.size(), in.tokens * in.top_k);
    check_length("gate", in.gate.size(), matrix);
    check_length("up", in.up.size(), matrix);
    check_length("down", in.down.size(), matrix);
    check_optional("gate_bias", in.gate_bias.size(), in.experts * in.intermediate);
    check_optional("up_bias", in.up_bias.size(), in.experts * in.intermediate);
    check_optional("down_bias", in.down_bias.size(), in.experts * in.hidden);
    check_length("shared_gate", in.shared_gate.size(), in.shared_intermediate * in.hidden);
    check_length("shared_up", in.shared_up.size(), in.shared_intermediate * in.hidden);
    check_length("shared_down", in.shared_down.size(), in.shared_intermediate * in.hidden);
    check_optional("shared_weights", in.shared_weights.size(), in.tokens);
    for (size_t route = 0; route < in.topk_ids.size(); ++route) {
        const int64_t id = in.topk_ids[route];
        if (id >= -1 && id < in.experts) continue;
        const auto k = static_cast<size_t>(in.top_k);
        throw std::invalid_argument("oracle: topk_ids[" + std::to_string(route / k) + "," +
                                    std::to_string(route % k) + "] is " + std::to_string(id) +
                                    ", expected -1 to " + std::to_string(in.experts - 1));
    }
}

// ---- one gated MLP over the rows of its tokens

// The idx-th [rows, cols] matrix of a tensor; [0, cols] where the tensor is absent.
ConstView matrix_of(const std::vector<double>& tensor, int64_t idx, int64_t rows, int64_t cols) {
    if (tensor.empty()) return ConstView(nullptr, 0, cols);
    return ConstView(tensor.data() + idx * rows * cols, rows, cols);
}
View matrix_of(std::vector<double>& tensor, int64_t idx, int64_t rows, int64_t cols) {
    if (tensor.empty()) return View(nullptr, 0, cols);
    return View(tensor.data() + idx * rows * cols, rows, cols);
}

template <class T, class Tensors>
Mlp<T> expert_of(Tensors& tensors, const Inputs& in, int64_t expert) {
    return {matrix_of(tensors.gate, expert, in.intermediate, in.hidden),
            matrix_of(tensors.up, expert, in.intermediate, in.hidden),
            matrix_of(tensors.down, expert, in.hidden, in.intermediate),
            matrix_of(tensors.gate_bias, expert, 1, in.intermediate),
            matrix_of(tensors.up_bias, expert, 1, in.intermediate),
            matrix_of(tensors.down_bias, expert, 1, in.hidden)};
}

template <class T, class Tensors>
Mlp<T> shared_of(Tensors& tensors, const Inputs& in) {
    const int64_t width = in.shared_intermediate;
    return {matrix_of(tensors.shared_gate, 0, width, in.hidden),
            matrix_of(tensors.shared_up, 0, width, in.hidden),
            matrix_of(tensors.shared_down, 0, in.hidden, width),
            T(nullptr, 0, width),
            T(nullptr, 0, width),
            T(nullptr, 0, in.hidden)};
}

MlpRows mlp_forward(const Mlp<ConstView>& mlp, const Matrix& x, const Activation& act) {
    MlpRows rows;
    rows.gate.noalias() = x * mlp.gate.transpose();
    rows.up.noalias() = x * mlp.up.transpose();
    if (mlp.gate_bias.rows() != 0) rows.gate.rowwise() += mlp.gate_bias.row(0);
    if (mlp.up_bias.rows() != 0) rows.up.rowwise() += mlp.up_bias.row(0);
    rows.hidden = rows.gate.binaryExpr(
        rows.up, [&act](double gate, double up) { return activate(gate, up, act); });
    rows.y.noalias() = rows.hidden * mlp.down.transpose();
    if (mlp.down_bias.rows() != 0) rows.y.rowwise() += mlp.down_bias.row(0);
    return rows;
}

// Writes the weights' gradients and returns d_x [n, H].
Matrix mlp_backward(const Mlp<ConstView>& mlp, const Matrix& x, const MlpRows& rows,
                    const Matrix& d_y, const Activation& act, Mlp<View> grad) {
    const Matrix d_hidden = d_y * mlp.down;
    Matrix d_gate(d_hidden.rows(), d_hidden.cols());
    Matrix d_up(d_hidden.rows(), d_hidden.cols());
    for (Eigen::Index i = 0; i < d_hidden.size(); ++i) {
        const ActivationGradient d =
            activate_backward(rows.gate.data()[i], rows.up.data()[i], d_hidden.data()[i], act);
        d_gate.data()[i] = d.gate;
        d_up.data()[i] = d.up;
    }
    grad.down.noalias() = d_y.transpose() * rows.hidden;
    grad.gate.noalias() = d_gate.transpose() * x;
    grad.up.noalias() = d_up.transpose() * x;
    if (grad.down_bias.rows() != 0) grad.down_bias = d_y.colwise().sum();
    if (grad.gate_bias.rows() != 0) grad.gate_bias = d_gate.colwise().sum();
    if (grad.up_bias.rows() != 0) grad.up_bias = d_up.colwise().sum();
    Matrix d_x = d_gate * mlp.gate;
    d_x.noalias() += d_up * mlp.up;
    return d_x;
}

// ---- segments: the rows that one MLP computes

struct Segment {
    Quantisation quantisation = Quantisation::None;
    std::vector<int64_t> tokens;   // [n] token of each row
    std::vector<double> weights;   // [n] what its y counts in the token's output
    std::vector<int64_t> sources;  // [n] index of that weight in its tensor
};

std::vector<Segment> expert_segments(const Inputs& in) {
    std::vector<Segment> segments(static_cast<size_t>(in.experts));
    for (Segment& segment : segments) segment.quantisation = in.quantisation;
    for (size_t route = 0; route < in.topk_ids.size(); ++route) {
        if (in.topk_ids[route] == -1) continue;
        Segment& segment = segments[static_cast<size_t>(in.topk_ids[route])];
        segment.tokens.push_back(static_cast<int64_t>(route) / in.top_k);
        segment.weights.push_back(in.topk_weights[route]);
        segment.sources.push_back(static_cast<int64_t>(route));
    }
    return segments;
}

Segment shared_segment(const Inputs& in) {
    Segment segment;
    for (int64_t token = 0; token < in.tokens; ++token) {
        const bool weighted = !in.shared_weights.empty();
        segment.tokens.push_back(token);
        segment.weights.push_back(weighted ? in.shared_weights[static_cast<size_t>(token)] : 1.0);
        segment.sources.push_back(token);
    }
    return segment;
}

Matrix gather(const std::vector<double>& tensor, int64_t cols, const std::vector<int64_t>& tokens) {
    Matrix rows(static_cast<Eigen::Index>(tokens.size()), cols);
    for (size_t i = 0; i < tokens.size(); ++i) {
        rows.row(static_cast<Eigen::Index>(i)) = matrix_of(tensor, tokens[i], 1, cols).row(0);
    }
    return rows;
}

MlpRows segment_forward(const Inputs& in, const Segment& segment, const Mlp<ConstView>& mlp,
                        const Matrix& x) {
    if (segment.quantisation == Quantisation::None) return mlp_forward(mlp, x, in.activation);
    return mlp_forward_fp8(mlp, x, in.activation, segment.quantisation);
}

void add_forward(const Inputs& in, const Segment& segment, const Mlp<ConstView>& mlp,
                 std::vector<double>& out) {
    if (segment.tokens.empty()) return;
    const Matrix x = gather(in.x, in.hidden, segment.tokens);
    const MlpRows rows = segment_forward(in, segment, mlp, x);
    for (size_t i = 0; i < segment.tokens.size(); ++i) {
        matrix_of(out, segment.tokens[i], 1, in.hidden) +=
            segment.weights[i] * rows.y.row(static_cast<Eigen::Index>(i));
    }
}

// The mean square of |d_y| |y| / sqrt(H), over segments.
struct WeightGradientSize {
    double sum_squares = 0.0;
    int64_t count = 0;

    void add(double square) {
        if (!std::isfinite(square)) return;
        sum_squares += square;
        ++count;
    }
    double rms() const { return count == 0 ? 0.0 : std::sqrt(sum_squares / double(count)); }
};

// Adds to d_x, writes the MLP's gradients and those of the segment's weights (into d_weights where
// the weights are a tensor, that is, where d_weights is not empty).
struct SegmentGradients {
    std::vector<double>& d_x;
    std::vector<double>& d_weights;
    WeightGradientSize& size;
    Mlp<View> mlp;
};

void add_backward(const Inputs& in, const Segment& segment, const Mlp<ConstView>& mlp,
                  SegmentGradients grad) {
    if (segment.tokens.empty()) return;
    const Matrix x = gather(in.x, in.hidden, segment.tokens);
    const MlpRows rows = segment_forward(in, segment, mlp, x);
    const Matrix d_out = gather(in.grad_output, in.hidden, segment.tokens);
    const auto weights =
        Eigen::Map<const Eigen::VectorXd>(segment.weights.data(), std::ssize(segment.weights));
    Eigen::VectorXd d_weights = d_out.cwiseProduct(rows.y).rowwise().sum();
    Matrix d_x;
    if (segment.quantisation == Quantisation::None) {
        d_x = mlp_backward(mlp, x, rows, weights.asDiagonal() * d_out, in.activation, grad.mlp);
    } else {
        Fp8Gradients fp8{grad.mlp, {}};
        d_x = mlp_backward_fp8(mlp, x, d_out, weights, in.activation, segment.quantisation, fp8);
        d_weights = fp8.d_weights;
    }
    for (size_t i = 0; i < segment.tokens.size(); ++i) {
        const auto row = static_cast<Eigen::Index>(i);
        matrix_of(grad.d_x, segment.tokens[i], 1, in.hidden) += d_x.row(row);
        if (grad.d_weights.empty()) continue;
        grad.d_weights[static_cast<size_t>(segment.sources[i])] = d_weights[row];
        grad.size.add(d_out.row(row).squaredNorm() * rows.y.row(row).squaredNorm() /
                      double(in.hidden));
    }
}

Gradients zeros_like(const Inputs& in) {
    const auto zeros = [](const std::vector<double>& v) {
        return std::vector<double>(v.size(), 0.0);
    };
    Gradients g;
    g.x = zeros(in.x);
    g.topk_weights = zeros(in.topk_weights);
    g.gate = zeros(in.gate);
    g.up = zeros(in.up);
    g.down = zeros(in.down);
    g.gate_bias = zeros(in.gate_bias);
    g.up_bias = zeros(in.up_bias);
    g.down_bias = zeros(in.down_bias);
    g.shared_gate = zeros(in.shared_gate);
    g.shared_up = zeros(in.shared_up);
    g.shared_down = zeros(in.shared_down);
    g.shared_weights = zeros(in.shared_weights);
    return g;
}

}  // namespace

Outputs forward(const Inputs& in) {
    check(in);
    Outputs result;
    result.out.assign(in.x.size(), 0.0);
    const std::vector<Segment> segments = expert_segments(in);
    for (int64_t expert = 0; expert < in.experts; ++expert) {
        const Segment& segment = segments[static_cast<size_t>(expert)];
        add_forward(in, segment, expert_of<ConstView>(in, in, expert), result.out);
        result.tokens_per_expert.push_back(static_cast<int64_t>(segment.tokens.size()));
    }
    if (in.shared_intermediate != 0) {
        add_forward(in, shared_segment(in), shared_of<ConstView>(in, in), result.out);
    }
    return result;
}

Gradients backward(const Inputs& in) {
    check(in);
    check_length("grad_output", in.grad_output.size(), in.tokens * in.hidden);
    Gradients g = zeros_like(in);
    WeightGradientSize topk_size;
    WeightGradientSize shared_size;
    const std::vector<Segment> segments = expert_segments(in);
    for (int64_t expert = 0; expert < in.experts; ++expert) {
        add_backward(in, segments[static_cast<size_t>(expert)],
                     expert_of<ConstView>(in, in, expert),
                     {g.x, g.topk_weights, topk_size, expert_of<View>(g, in, expert)});
    }
    if (in.shared_intermediate != 0) {
        add_backward(in, shared_segment(in), shared_of<ConstView>(in, in),
                     {g.x, g.shared_weights, shared_size, shared_of<View>(g, in)});
    }
    g.topk_weights_rms = topk_size.rms();
    g.shared_weights_rms = shared_size.rms();
    return g;
}

}  // namespace mok::oracle
