#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "math/bf16.h"
#include "openmok/precision.h"
#include "openmok/tensor.h"
#include "plan/memory_map.h"

namespace mok::kernels {

// Rows [rows, cols] BF16, contiguous, 16-byte aligned, cols a multiple of 8, into rows of FP8
// (plan::Fp8RowsMap) with scales by row: the bytes that the CPU makes.
struct QuantiseRows {
    const Bf16* from;
    int64_t rows, cols;
    Precision precision;  // Fp8Block or Mxfp8
    uint8_t* elements;
    void* scales;  // f32 or ue8m0
};
cudaError_t launch_quantise_rows(const QuantiseRows& params, cudaStream_t stream);

// A stack of weights [count, rows, cols], BF16 or F32 (rounded to BF16 first), strides in elements,
// columns contiguous, into both orientations, where plan::Fp8MatrixMap has them.
struct QuantiseWeights {
    const void* from;
    DType dtype;
    int64_t count, rows, cols;
    int64_t matrix_stride, row_stride;
    Precision precision;                     // Fp8Block or Mxfp8
    plan::Fp8MatrixMap by_rows, by_columns;  // [rows, cols] and [cols, rows]
    uint8_t* to;                             // what the maps' offsets count from
};
cudaError_t launch_quantise_weights(const QuantiseWeights& params, cudaStream_t stream);
cudaError_t launch_quantise_mxfp8_weights(const QuantiseWeights& params, cudaStream_t stream);

// One orientation of a stack of Mxfp8 weights as BF16 numbers, element times scale, [count, rows,
// cols] contiguous: what Hopper's tensor cores multiply. `is_transposed`: the map is that of [cols,
// rows].
struct DequantiseWeights {
    const uint8_t* from;  // what the map's offsets count from
    plan::Fp8MatrixMap map;
    bool is_transposed;
    int64_t count, rows, cols;
    Bf16* to;
};
cudaError_t launch_dequantise_weights(const DequantiseWeights& params, cudaStream_t stream);

}  // namespace mok::kernels
