#pragma once

#include <cuda_runtime_api.h>

#include "kernels/mxfp8_params.h"
#include "kernels/quantise.h"

namespace mok::kernels {

// Rows [rows, cols] BF16, contiguous, 16-byte aligned, cols a multiple of 8, into rows of Mxfp8
// with scales by row: the bytes that the CPU makes.
struct QuantiseMxfp8Rows {
    const Bf16* from;
    int64_t rows, cols;
    Mxfp8Rows to;
};
cudaError_t launch_quantise_mxfp8_rows(const QuantiseMxfp8Rows& params, cudaStream_t stream);

// As launch_quantise_weights, into both orientations of Mxfp8: each is quantised by itself.
cudaError_t launch_quantise_mxfp8_weights(const QuantiseWeights& params, cudaStream_t stream);

}  // namespace mok::kernels
