#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/fp8_params.h"
#include "math/bf16.h"
#include "openmok/tensor.h"

namespace mok::kernels {

// Rows [rows, cols] BF16, contiguous, 16-byte aligned, cols a multiple of 8, into rows of Fp8Block
// with scales by row: the bytes that the CPU makes.
struct QuantiseRows {
    const Bf16* from;
    int64_t rows, cols;
    Fp8Rows to;
};
cudaError_t launch_quantise_rows(const QuantiseRows& params, cudaStream_t stream);

// A stack of weights [count, rows, cols], BF16 or F32 (rounded to BF16 first), strides in elements,
// columns contiguous, into both orientations of Fp8Block, where plan::Fp8MatrixMap has them.
struct QuantiseWeights {
    const void* from;
    DType dtype;
    int64_t count, rows, cols;
    int64_t matrix_stride, row_stride;
    plan::Fp8MatrixMap by_rows, by_columns;  // [rows, cols] and [cols, rows]
    uint8_t* to;                             // what the maps' offsets count from
};
cudaError_t launch_quantise_weights(const QuantiseWeights& params, cudaStream_t stream);

}  // namespace mok::kernels
