#pragma once

#include <cuda.h>

#include <cstdint>

namespace mok::arch {

// A stack of BF16 matrices [count, rows, cols] with strides in elements (multiples of 8, base
// 16-byte aligned), cut into boxes of box_rows x 64 columns with the 128-byte swizzle. What lies
// outside a matrix reads as zero and is not written. Throws std::runtime_error where the driver
// refuses.
struct MatrixStack {
    const void* data;
    int64_t count, rows, cols;
    int64_t row_stride, matrix_stride;
};
CUtensorMap make_tensor_map(const MatrixStack& stack, int box_rows);

}  // namespace mok::arch
