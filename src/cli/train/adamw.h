#pragma once

#include <cstdint>

// AdamW (Loshchilov and Hutter 2019, algorithm 2, with alpha = 1 and eta the learning rate):
//     m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
//     w = w - eta (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w).
namespace mok::train {

inline constexpr float kBeta1 = 0.9f;
inline constexpr float kBeta2 = 0.95f;
inline constexpr float kAdamEpsilon = 1e-8f;

struct AdamWStep {
    float learning_rate = 0.0f;
    float gradient_scale = 1.0f;     // of clipping: every g is multiplied by it first
    float first_correction = 1.0f;   // 1 / (1 - b1^t)
    float second_correction = 1.0f;  // 1 / (1 - b2^t)
};
// t = 1 for the first step.
AdamWStep adamw_step(int64_t t, double learning_rate, double gradient_scale);

struct AdamWState {
    float* values;
    const float* gradients;
    float* first_moments;
    float* second_moments;
};
// `count` elements, each for itself.
void adamw(const AdamWStep& step, float decay, const AdamWState& state, int64_t count);

// The factor that brings gradients of this norm to at most max_norm.
double clip_scale(double norm, double max_norm);

// The sum of squares in FP64: eight running sums by i mod 8, then these in order.
double sum_of_squares(const float* values, int64_t count);

// eta of step t = 1..steps: linear over the warm-up, then a cosine from the peak to a tenth of it.
double scheduled_rate(int64_t t, int64_t steps, int64_t warmup_steps, double peak);

}  // namespace mok::train
