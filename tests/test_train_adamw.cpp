#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cli/train/adamw.h"

namespace mok::train {
namespace {

// Algorithm 2 of "Decoupled Weight Decay Regularization", line by line in FP64 for one number.
struct PaperAdamW {
    double theta, m = 0.0, v = 0.0;
    void step(int t, double gradient, double eta, double lambda) {
        const double b1 = 0.9, b2 = 0.95, epsilon = 1e-8;
        m = b1 * m + (1.0 - b1) * gradient;
        v = b2 * v + (1.0 - b2) * gradient * gradient;
        const double m_hat = m / (1.0 - std::pow(b1, t));
        const double v_hat = v / (1.0 - std::pow(b2, t));
        theta -= eta * (m_hat / (std::sqrt(v_hat) + epsilon) + lambda * theta);
    }
};

TEST(AdamW, FollowsThePaper) {
    const std::vector<double> start{1.0, -0.5, 0.0, 2.0};
    std::vector<PaperAdamW> expected;
    for (const double value : start) expected.push_back({value});
    std::vector<float> values(start.begin(), start.end()), gradients(4), first(4), second(4);
    for (int t = 1; t <= 50; ++t) {
        for (int i = 0; i < 4; ++i) {
            const double gradient = std::sin(0.7 * t + i) * (i + 1);
            gradients[i] = static_cast<float>(gradient * 2.0);  // halved by the scale below
            expected[i].step(t, gradient, 0.01 * t, 0.1);
        }
        adamw(adamw_step(t, 0.01 * t, 0.5), 0.1f,
              {values.data(), gradients.data(), first.data(), second.data()}, 4);
    }
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(values[i], expected[i].theta, 2e-4) << i;
}

TEST(AdamW, ElementsStandAlone) {
    std::vector<float> together{1, 2, 3, 4, 5}, gradients{5, -4, 3, -2, 1}, m(5), v(5);
    adamw(adamw_step(1, 0.1, 1.0), 0.1f, {together.data(), gradients.data(), m.data(), v.data()},
          5);
    for (int i = 0; i < 5; ++i) {
        float value = static_cast<float>(i + 1), first = 0, second = 0;
        adamw(adamw_step(1, 0.1, 1.0), 0.1f, {&value, &gradients[i], &first, &second}, 1);
        EXPECT_EQ(value, together[i]) << i;
    }
}

TEST(AdamW, NormAndClip) {
    std::vector<float> values(19, 2.0f);
    values[18] = 3.0f;
    EXPECT_DOUBLE_EQ(sum_of_squares(values.data(), 19), 18 * 4.0 + 9.0);
    EXPECT_DOUBLE_EQ(clip_scale(4.0, 1.0), 0.25);
    EXPECT_DOUBLE_EQ(clip_scale(0.5, 1.0), 1.0);
}

TEST(AdamW, Schedule) {
    EXPECT_DOUBLE_EQ(scheduled_rate(1, 100, 10, 2.0), 0.2);
    EXPECT_DOUBLE_EQ(scheduled_rate(10, 100, 10, 2.0), 2.0);
    EXPECT_NEAR(scheduled_rate(55, 100, 10, 2.0), 0.55 * 2.0, 1e-12);  // half way: the mean
    EXPECT_NEAR(scheduled_rate(100, 100, 10, 2.0), 0.2, 1e-12);
    EXPECT_NEAR(scheduled_rate(5, 5, 0, 2.0), 0.2, 1e-12);
}

}  // namespace
}  // namespace mok::train
