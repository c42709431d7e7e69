#pragma once

#include <limits>

namespace mok {

// The gated activation of one element, in FP32 from the FP32 products of its row:
//     g = min(gate, limit), u = clamp(up, -limit, limit)
//     hidden = g * sigmoid(alpha * g) * (u + beta)
// The defaults are SwiGLU. Clamped SwiGLU as gpt-oss has it: limit 7, alpha 1.702, beta 1.
// The gradient is zero strictly outside the limits and passes at them.
struct Activation {
    float limit = std::numeric_limits<float>::infinity();  // > 0
    float alpha = 1.0f;
    float beta = 0.0f;
};

}  // namespace mok
