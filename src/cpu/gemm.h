#pragma once

#include <cstdint>

namespace mok::cpu {

// The one matrix product of the CPU backend: Eigen's, single-threaded, always of the same shape.
//
//     c[j][i] += sum over k of a(i, k) * b(k, j),   i < 128, j < 64, k < 128, all FP32
//
// The sum over k is formed from zero and then added to c. Eigen promises no order of k across
// shapes, so the shape is fixed and tokens stand on the j side, where every position takes the same
// path through the kernel: a token's result does not depend on its place in a tile (test_gemm moves
// a row through all places and compares bits). The i side holds features, whose place never
// changes. On 64-bit Arm a few rows of i are computed here, so that its bits are those of AVX2.
inline constexpr int64_t kBlock = 128;     // i and k
inline constexpr int64_t kBlockCols = 64;  // j

// How an operand block of FP32 lies in memory. Its row stride is kBlock.
enum class Layout {
    KInner,  // [outer][k]
    KOuter,  // [k][outer]
};

void multiply_add(float* c, const float* a, Layout a_layout, const float* b, Layout b_layout);

}  // namespace mok::cpu
