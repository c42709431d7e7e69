#pragma once

#include <cstdint>

namespace mok {

// In what the routed experts' products are computed (docs/precision.md). Sums are FP32, and tensors
// that enter and leave the layer are the same, in all three; the shared expert is always BF16.
enum class Precision : int32_t {
    BF16,
    Fp8Block,  // E4M3, an FP32 scale per 128 of K (weights: per 128 x 128)
    Mxfp8,     // E4M3, an E8M0 scale per 32 of K
};

// The name in options and files: bf16, fp8_block, mxfp8.
constexpr const char* precision_name(Precision precision) {
    switch (precision) {
        case Precision::Fp8Block:
            return "fp8_block";
        case Precision::Mxfp8:
            return "mxfp8";
        default:
            return "bf16";
    }
}

}  // namespace mok
