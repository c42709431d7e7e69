#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "openmok/tensor.h"

namespace mok::kernels {

// Tensors of a call on their way into the layer's own memory: any strides -> contiguous, FP32 ->
// BF16 by one rounding where that is asked.
struct PublishItem {
    const void* from;  // [matrices, rows, cols], strides in elements, columns contiguous
    DType from_dtype;  // BF16 or F32
    int64_t matrices, rows, cols;
    int64_t matrix_stride, row_stride;
    void* to;        // [matrices, rows, cols] contiguous, 16-byte aligned
    DType to_dtype;  // BF16, or that of `from`
};
inline constexpr int kMaxPublished = 12;
struct PublishParams {
    PublishItem items[kMaxPublished];
    int32_t num_items;
};
cudaError_t launch_publish(const PublishParams& params, cudaStream_t stream);

// A call's ids, I32 or I64, as int32 into the window and into the schedule's own memory. What int32
// cannot hold is out of range for any number of experts and becomes INT32_MIN or INT32_MAX.
struct PublishIds {
    const void* from;  // [rows, K], strides in elements
    DType dtype;
    int64_t rows, top_k;
    int64_t row_stride, choice_stride;
    int32_t *window, *own;   // [rows, K] each
    int32_t num_tokens;      // T, to be checked by the table builder; more than `rows`: too many
    int32_t* num_tokens_at;  // [1]
};
cudaError_t launch_publish_ids(const PublishIds& params, cudaStream_t stream);

}  // namespace mok::kernels
