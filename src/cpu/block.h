#pragma once

#include <cstdint>

#include "cpu/gemm.h"
#include "math/bf16.h"
#include "openmok/tensor.h"

namespace mok::cpu {

// A 128 x 128 piece of a matrix in FP32, zero where the matrix ends.
struct alignas(64) Block {
    float at[kBlock * kBlock];
};

// Rows [0, num_rows) and columns [col, col + 128) of BF16 rows that lie `stride` apart and are
// `num_cols` wide.
void load_rows(Block& out, const Bf16* rows, int64_t stride, int64_t num_rows, int64_t col,
               int64_t num_cols);

// The same piece of matrix `index` of a tensor [n, rows, cols] (of the tensor itself if [rows,
// cols]). F32 elements are rounded to BF16.
void load_matrix(Block& out, const ConstTensor& tensor, int64_t index, int64_t row, int64_t col);

// out[row][i] += sum over k of a(i, k) * b(k, row) for the rows in use, in two products of 64 rows.
// Rows past num_rows may or may not be computed; b is zero there.
void multiply_rows(Block& out, const Block& a, Layout a_layout, const Block& b, Layout b_layout,
                   int64_t num_rows);

// One element of a tensor's row in FP32 after rounding to BF16, and its storing with one rounding.
float load_rounded(const void* data, DType dtype, int64_t at);
void store_rounded(void* data, DType dtype, int64_t at, float value);
float load_exact(const void* data, DType dtype, int64_t at);

// Start of vector `index` of a tensor [n, cols], in elements.
inline int64_t offset_of(const ConstTensor& t, int64_t index) {
    return index * t.stride[0];
}

}  // namespace mok::cpu
