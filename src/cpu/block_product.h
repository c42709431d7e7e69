#pragma once

#include <cstdint>

#include "cpu/quantise.h"

namespace mok::cpu {

// c[t][f] += sum over k of tokens(t, k) * features(f, k), FP32, c [tokens.outer][features.outer];
// both operands have the same k. K goes in chunks of 128, first to last:
//
// Fp8Block   partial = the chunk's sum of products of elements, FP32, from zero;
//            c = fma(partial, scale of tokens * scale of features, c)
// Mxfp8      c = c + the chunk's sum, from zero, of products of dequantised BF16 operands
//
// The order inside a chunk is multiply_add's of cpu/gemm.h. A reference for kernels: they agree
// within the rounding of FP32 sums.
// Throws std::invalid_argument where the operands' k differ.
template <class Recipe>
void multiply_blocks(float* c, const Quantised<Recipe>& tokens, const Quantised<Recipe>& features);

}  // namespace mok::cpu
