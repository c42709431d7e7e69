#include "cli/train/adamw.h"

#include <array>
#include <cmath>
#include <numbers>

namespace mok::train {

AdamWStep adamw_step(int64_t t, double learning_rate, double gradient_scale) {
    const double power = static_cast<double>(t);
    AdamWStep step;
    step.learning_rate = static_cast<float>(learning_rate);
    step.gradient_scale = static_cast<float>(gradient_scale);
    step.first_correction = static_cast<float>(1.0 / (1.0 - std::pow(kBeta1, power)));
    step.second_correction = static_cast<float>(1.0 / (1.0 - std::pow(kBeta2, power)));
    return step;
}

void adamw(const AdamWStep& step, float decay, const AdamWState& state, int64_t count) {
    float* __restrict values = state.values;
    const float* __restrict gradients = state.gradients;
    float* __restrict first = state.first_moments;
    float* __restrict second = state.second_moments;
    for (int64_t i = 0; i < count; ++i) {
        const float g = gradients[i] * step.gradient_scale;
        first[i] = kBeta1 * first[i] + (1.0f - kBeta1) * g;
        second[i] = kBeta2 * second[i] + (1.0f - kBeta2) * (g * g);
        const float direction = first[i] * step.first_correction /
                                (std::sqrt(second[i] * step.second_correction) + kAdamEpsilon);
        values[i] -= step.learning_rate * (direction + decay * values[i]);
    }
}

double clip_scale(double norm, double max_norm) {
    return norm > max_norm ? max_norm / norm : 1.0;
}

double sum_of_squares(const float* values, int64_t count) {
    std::array<double, 8> lanes{};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int lane = 0; lane < 8; ++lane) {
            const double value = values[i + lane];
            lanes[lane] += value * value;
        }
    }
    for (int lane = 0; i < count; ++i, ++lane) {
        lanes[lane] += static_cast<double>(values[i]) * values[i];
    }
    double sum = 0.0;
    for (const double lane : lanes) sum += lane;
    return sum;
}

double scheduled_rate(int64_t t, int64_t steps, int64_t warmup_steps, double peak) {
    if (t <= warmup_steps) {
        return peak * static_cast<double>(t) / static_cast<double>(warmup_steps);
    }
    const double done =
        static_cast<double>(t - warmup_steps) / static_cast<double>(steps - warmup_steps);
    return peak * (0.1 + 0.9 * 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

}  // namespace mok::train
