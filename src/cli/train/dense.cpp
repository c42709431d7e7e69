#include "cli/train/dense.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/train/matrix.h"
#include "math/activation_math.h"

namespace mok::train {
namespace {

constexpr float kNormEpsilon = 1e-6f;
constexpr int kLanes = 8;
constexpr int kBytes = 256;

// Sum of a[i] * b[i]: eight running sums by i mod 8, then these in order.
float dot(const float* a, const float* b, int64_t width) {
    std::array<float, kLanes> lanes{};
    for (int64_t i = 0; i < width; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    }
    float sum = 0.0f;
    for (const float lane : lanes) sum += lane;
    return sum;
}

// out = left * right. On x86 the product is Eigen's for AVX2, which forms the sums of 24 columns of
// a row-major result at a time, then of 16, by one product after the other; of those that are left
// two sums, of even and of odd k up to a multiple of 8, which are added, and then the other k. On
// 64-bit Arm its kernel has other groups, so it has the columns of 24 alone, and the rest is here:
// the same bits where Eigen cuts no k (it does beyond 288) and the columns are a multiple of 4.
template <class Left, class Right>
void multiply(Eigen::Map<Matrix> out, const Left& left, const Right& right) {
#if defined(__aarch64__)
    using Eigen::Index;
    const Index cols = out.cols(), depth = left.cols();
    const Index whole = cols / 24 * 24, in_order = whole + (cols - whole >= 16 ? 16 : 0);
    out.leftCols(whole).noalias() = left * right.leftCols(whole);
    for (Index row = 0; row < out.rows(); ++row) {
        for (Index col = whole; col < cols; ++col) {
            const Index in_two = col < in_order ? 0 : depth / 8 * 8;
            float sum[2] = {0.0f, 0.0f};
            for (Index k = 0; k < in_two; ++k) {
                sum[k % 2] = std::fma(left(row, k), right(k, col), sum[k % 2]);
            }
            sum[0] += sum[1];
            for (Index k = in_two; k < depth; ++k) {
                sum[0] = std::fma(left(row, k), right(k, col), sum[0]);
            }
            out(row, col) = sum[0];
        }
    }
#else
    out.noalias() = left * right;
#endif
}

}  // namespace

void rms_norm(NormShape shape, const float* x, const float* gain, float* y, float* inv_rms) {
    for (int64_t row = 0; row < shape.rows; ++row) {
        const float* x_row = x + row * shape.width;
        float* y_row = y + row * shape.width;
        const float mean = dot(x_row, x_row, shape.width) / static_cast<float>(shape.width);
        const float scale = 1.0f / std::sqrt(mean + kNormEpsilon);
        inv_rms[row] = scale;
        for (int64_t i = 0; i < shape.width; ++i) y_row[i] = x_row[i] * scale * gain[i];
    }
}

void rms_norm_backward(NormShape shape, const float* x, const float* gain, const float* inv_rms,
                       const float* d_y, float* d_x, float* d_gain) {
    Buffer scaled(shape.width);
    std::fill_n(d_gain, shape.width, 0.0f);
    for (int64_t row = 0; row < shape.rows; ++row) {
        const float* x_row = x + row * shape.width;
        const float* d_y_row = d_y + row * shape.width;
        float* d_x_row = d_x + row * shape.width;
        const float scale = inv_rms[row];
        for (int64_t i = 0; i < shape.width; ++i) {
            scaled[i] = d_y_row[i] * gain[i];
            d_gain[i] += d_y_row[i] * (x_row[i] * scale);
        }
        const float along =
            dot(scaled.data(), x_row, shape.width) * scale / static_cast<float>(shape.width);
        for (int64_t i = 0; i < shape.width; ++i) {
            d_x_row[i] += scale * (scaled[i] - x_row[i] * scale * along);
        }
    }
}

void linear(LinearShape shape, const float* x, const float* weight, float* y) {
    multiply(matrix(y, shape.rows, shape.out), matrix(x, shape.rows, shape.in),
             matrix(weight, shape.out, shape.in).transpose());
}

void linear_dgrad(LinearShape shape, const float* d_y, const float* weight, float* d_x) {
    multiply(matrix(d_x, shape.rows, shape.in), matrix(d_y, shape.rows, shape.out),
             matrix(weight, shape.out, shape.in));
}

void linear_wgrad(LinearShape shape, const float* d_y, const float* x, float* d_weight) {
    multiply(matrix(d_weight, shape.out, shape.in), matrix(d_y, shape.rows, shape.out).transpose(),
             matrix(x, shape.rows, shape.in));
}

float softmax(float* row, int64_t width) {
    const float top = *std::max_element(row, row + width);
    float sum = 0.0f;
    for (int64_t i = 0; i < width; ++i) row[i] = exp_f32(row[i] - top);
    for (int64_t i = 0; i < width; ++i) sum += row[i];
    const float inverse = 1.0f / sum;
    for (int64_t i = 0; i < width; ++i) row[i] *= inverse;
    return top + std::log(sum);
}

double cross_entropy(int64_t rows, const uint8_t* targets, float scale, float* logits) {
    double loss = 0.0;
    for (int64_t row = 0; row < rows; ++row) {
        float* values = logits + row * kBytes;
        const float target_logit = values[targets[row]];
        loss += static_cast<double>(softmax(values, kBytes)) - target_logit;
        values[targets[row]] -= 1.0f;
        for (int i = 0; i < kBytes; ++i) values[i] *= scale;
    }
    return loss;
}

}  // namespace mok::train
