#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "openmok/layer.h"

// One token through two experts that see only its first element, x = 1: gate = x, up = x times 2 or
// 4, down the identity there. So out = 0.25 * silu(1) * 2 + 0.75 * silu(1) * 4, silu(1) =
// 1/(1+1/e).
int main() {
    constexpr int64_t kWidth = 8;
    constexpr int64_t kMatrix = kWidth * kWidth;
    const mok::LayerShape shape{
        .hidden = kWidth, .intermediate = kWidth, .num_experts = 2, .top_k = 2};
    std::array<float, kWidth> x{};
    std::array<float, 2 * kMatrix> gate{}, up{}, down{};
    x[0] = 1;
    for (int64_t expert = 0; expert < 2; ++expert) {
        gate[expert * kMatrix] = 1;
        up[expert * kMatrix] = expert == 0 ? 2 : 4;
        down[expert * kMatrix] = 1;
    }
    const std::array<int64_t, 2> ids = {0, 1};
    const std::array<float, 2> topk_weights = {0.25f, 0.75f};
    std::array<float, kWidth> out{};

    using enum mok::DType;
    mok::Workspace workspace(mok::Group::self(), shape, {}, 1);
    const mok::Schedule schedule(workspace, {ids.data(), I64, {1, 2}});
    const mok::Weights weights{.gate = {gate.data(), F32, {2, kWidth, kWidth}},
                               .up = {up.data(), F32, {2, kWidth, kWidth}},
                               .down = {down.data(), F32, {2, kWidth, kWidth}}};
    const mok::Inputs inputs{.x = {x.data(), F32, {1, kWidth}},
                             .topk_weights = {topk_weights.data(), F32, {1, 2}}};
    mok::forward(workspace, schedule, weights, inputs, {out.data(), F32, {1, kWidth}});

    const double expected = (0.25 * 2 + 0.75 * 4) / (1 + std::exp(-1.0));
    std::printf("outside: found %.6f, expected %.6f\n", out[0], expected);
    const bool is_right = std::abs(out[0] - expected) < 0x1p-8 * expected;  // BF16 rounds hidden, y
    return is_right && out[1] == 0 ? 0 : 1;
}
