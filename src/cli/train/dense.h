#pragma once

#include <cstdint>

// The dense layers of one sequence, forward and backward, FP32. L rows (tokens) of `width` numbers,
// row-major and contiguous. Every sum runs in an order that only the shapes decide. Gradients of
// weights are this sequence's alone and overwrite.
namespace mok::train {

struct NormShape {
    int64_t rows = 0;
    int64_t width = 0;  // a multiple of 8
};

// RMSNorm (Zhang and Sennrich 2019): y = x * inv_rms * gain, inv_rms = (mean(x^2) + 1e-6)^(-1/2).
// inv_rms [L] is kept for the backward.
void rms_norm(NormShape shape, const float* x, const float* gain, float* y, float* inv_rms);

// With n = x * inv_rms and a = d_y * gain:
//     d_x += inv_rms * (a - n * mean(a * n)),  d_gain = sum over rows of d_y * n.
void rms_norm_backward(NormShape shape, const float* x, const float* gain, const float* inv_rms,
                       const float* d_y, float* d_x, float* d_gain);

struct LinearShape {
    int64_t rows = 0;
    int64_t in = 0;
    int64_t out = 0;
};

// y [L, out] = x [L, in] W^T, W [out, in].
void linear(LinearShape shape, const float* x, const float* weight, float* y);
// d_x [L, in] = d_y W (overwrites).
void linear_dgrad(LinearShape shape, const float* d_y, const float* weight, float* d_x);
// d_W [out, in] = d_y^T x.
void linear_wgrad(LinearShape shape, const float* d_y, const float* x, float* d_weight);

// Turns a row of logits into probabilities in place and returns the log of the sum of exponentials.
float softmax(float* row, int64_t width);

// Cross entropy of `rows` rows of 256 logits against the target bytes. Returns the sum of
// -ln p(target) over the rows; logits become d_logits = scale * (p - onehot(target)).
double cross_entropy(int64_t rows, const uint8_t* targets, float scale, float* logits);

}  // namespace mok::train
