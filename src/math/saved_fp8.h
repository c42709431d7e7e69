#pragma once

#include "math/block_scale.h"
#include "openmok/activation.h"

namespace mok {

// Gate and up that the backward finds again in FP8: the BF16 values that activation_math.h saves,
// quantised by rows, but never across a limit: an element is clamped in the backward exactly if it
// was in the forward. Where E4M3 lands on the other side, the element takes one step to its own.
// (A step beyond 448 does not exist. It would be needed where Fp8Block's scale rounds the block's
// amax down onto a limit that lies within 2^-23 of it without being a BF16 number.)
enum class Saved { Gate, Up };

MOK_HD inline bool is_clamped(Saved which, const Activation& a, float value) {
    const float size = which == Saved::Up && value < 0.0f ? -value : value;
    return size > a.limit;
}

template <class Recipe>
MOK_HD inline E4m3 on_its_side(Saved which, const Activation& a, Bf16 value, E4m3 element,
                               typename Recipe::Scale scale) {
    const uint8_t size = element.bits & 0x7fu;
    if (size == kE4m3NaN) return element;
    const bool clamped = is_clamped(which, a, to_f32(value));
    const bool lands_clamped = is_clamped(which, a, Recipe::dequantise_f32(element, scale));
    if (clamped && !lands_clamped && size < kE4m3NaN - 1) ++element.bits;
    if (lands_clamped && !clamped) --element.bits;
    return element;
}

}  // namespace mok
