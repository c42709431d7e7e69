#pragma once

#include <vector>

#include "arch/tensor_map.h"
#include "kernels/publish.h"
#include "layer/cuda_memory.h"
#include "math/bf16.h"
#include "openmok/tensor.h"

namespace mok::layer {

// Brings a call's tensors into the form that the kernels read: where they lie if they have it,
// otherwise as copies that one kernel makes.
class CudaPublisher {
  public:
    // The copies of earlier calls are given back: what reads them is enqueued by now.
    explicit CudaPublisher(DevicePool& pool) : pool_(pool) {}

    // A weight [rows, cols] or [count, rows, cols] as tensor maps take it: BF16, 16-byte aligned,
    // strides multiples of 16 bytes that do not overlap. An empty one is a matrix at `nothing`.
    arch::MatrixStack matrices(const ConstTensor& t, const std::byte* nothing);
    // [rows, cols] BF16, contiguous.
    const Bf16* rows(const ConstTensor& t);
    // Copies [rows, cols] to contiguous rows of `dtype`.
    void copy(const ConstTensor& t, void* to, DType dtype);
    // Enqueues the copies so far.
    void launch(cudaStream_t stream);
    // The copies' memory, for a caller that must keep it longer than the call.
    std::vector<Memory> release() { return std::move(staged_); }

  private:
    const Bf16* staged(const ConstTensor& t);

    DevicePool& pool_;
    std::vector<Memory> staged_;
    kernels::PublishParams params_{};
};

}  // namespace mok::layer
