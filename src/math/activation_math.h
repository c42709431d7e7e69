#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "math/bf16.h"
#include "math/host_device.h"
#include "openmok/activation.h"

namespace mok {

// exp(v) in FP32 by range reduction to [-ln2/2, ln2/2] and a degree-6 Taylor polynomial, with
// explicit fused multiply-adds: the same bits on every host, which no libm promises. Relative error
// below 2^-22 (test_math checks it against the C library in FP64). Overflows to infinity,
// underflows to zero, NaN stays NaN.
MOK_HD inline float exp_f32(float v) {
    constexpr float kLog2E = 1.44269504088896341f;
    constexpr float kLn2High = 0.693145751953125f;        // 15 bits: n * kLn2High is exact
    constexpr float kLn2Low = 1.42860682030941723e-6f;    // ln 2 - kLn2High
    constexpr float kMax = 88.72283f, kMin = -87.33654f;  // ln of the largest and least normal
    if (!(v <= kMax)) return v != v ? v : std::bit_cast<float>(0x7f800000u);
    if (v < kMin) return 0.0f;
    const float n = std::floor(std::fma(v, kLog2E, 0.5f));
    const float r = std::fma(-n, kLn2Low, std::fma(-n, kLn2High, v));
    float p = 1.0f / 720.0f;
    p = std::fma(p, r, 1.0f / 120.0f);
    p = std::fma(p, r, 1.0f / 24.0f);
    p = std::fma(p, r, 1.0f / 6.0f);
    p = std::fma(p, r, 0.5f);
    p = std::fma(p, r, 1.0f);
    p = std::fma(p, r, 1.0f);
    // 2^n in two factors: n may be 128 (p below 1) or -126.
    const int32_t half = static_cast<int32_t>(n) / 2;
    const int32_t rest = static_cast<int32_t>(n) - half;
    return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((rest + 127) << 23);
}

// On the GPU by its own exponential and division, each within 2 units in the last place: two
// special instructions instead of forty, which an epilogue of 16,384 elements feels. The bits are
// the device's, as those of its products are.
MOK_HD inline float sigmoid(float v) {
#if defined(__CUDA_ARCH__)
    return __fdividef(1.0f, 1.0f + __expf(-v));
#else
    return 1.0f / (1.0f + exp_f32(-v));
#endif
}

// min and clamp that let NaN pass (fminf would replace it by the limit).
MOK_HD inline float clamp_above(float v, float limit) {
    return v > limit ? limit : v;
}
MOK_HD inline float clamp_both(float v, float limit) {
    return v > limit ? limit : (v < -limit ? -limit : v);
}

// hidden of one element, see openmok/activation.h.
MOK_HD inline float activate(const Activation& a, float gate, float up) {
    const float g = clamp_above(gate, a.limit);
    const float u = clamp_both(up, a.limit);
    return g * sigmoid(a.alpha * g) * (u + a.beta);
}

// The saved gate and up. Rounded to BF16, but never across a limit: an element is clamped in the
// backward exactly if it was in the forward. (Plain rounding would put values just above the limit
// onto it, where the gradient passes.)
// A BF16's bits count its magnitude up, so one step more or less is one value further out or in.
MOK_HD inline Bf16 step_beside(Bf16 rounded, bool above, bool lands_above) {
    return {static_cast<uint16_t>(rounded.bits + above - lands_above)};
}
MOK_HD inline Bf16 saved_gate(const Activation& a, float gate) {
    const Bf16 rounded = to_bf16(gate);
    return step_beside(rounded, gate > a.limit, to_f32(rounded) > a.limit);
}
MOK_HD inline Bf16 saved_up(const Activation& a, float up) {
    const Bf16 rounded = to_bf16(up);
    return step_beside(rounded, std::fabs(up) > a.limit, std::fabs(to_f32(rounded)) > a.limit);
}

struct ActivationGrad {
    float hidden;  // the forward value
    float gate;    // d hidden / d gate, 0 outside the limit
    float up;      // d hidden / d up, 0 outside the limits
    bool gate_passes, up_passes;
};

// The forward value and both derivatives of one element. With s = sigmoid(alpha g):
//     d hidden / d g = s (1 + alpha g (1 - s)) (u + beta),  d hidden / d u = g s.
// sigmoid_of: sigmoid, or a kernel's own way to the same bits.
struct Sigmoid {
    MOK_HD float operator()(float v) const { return sigmoid(v); }
};
template <class SigmoidOf = Sigmoid>
MOK_HD inline ActivationGrad activate_grad(const Activation& a, float gate, float up,
                                           SigmoidOf&& sigmoid_of = {}) {
    const float g = clamp_above(gate, a.limit);
    const float u = clamp_both(up, a.limit);
    const float s = sigmoid_of(a.alpha * g);
    ActivationGrad out;
    out.gate_passes = !(gate > a.limit);
    out.up_passes = !(up > a.limit) && !(up < -a.limit);
    out.hidden = g * s * (u + a.beta);
    const float by_gate = s * (1.0f + a.alpha * g * (1.0f - s)) * (u + a.beta), by_up = g * s;
    out.gate = out.gate_passes ? by_gate : 0.0f;
    out.up = out.up_passes ? by_up : 0.0f;
    return out;
}

// d_gate and d_up of one element. Outside the limits they are zero whatever d_hidden holds, NaN and
// Inf included.
MOK_HD inline float gate_gradient(const ActivationGrad& a, float d_hidden) {
    return a.gate_passes ? d_hidden * a.gate : 0.0f;
}
MOK_HD inline float up_gradient(const ActivationGrad& a, float d_hidden) {
    return a.up_passes ? d_hidden * a.up : 0.0f;
}

}  // namespace mok
