#include "layer/cuda_publish.h"

#include <algorithm>

namespace mok::layer {
namespace {

// A tensor of up to three dimensions as [matrices, rows, cols].
struct Stack {
    int64_t matrices, rows, cols;
    int64_t matrix_stride, row_stride;
};

Stack stack_of(const ConstTensor& t) {
    const int d = t.dims;
    Stack s{d > 2 ? t.shape[0] : 1, d > 1 ? t.shape[d - 2] : 1, t.shape[d - 1],
            d > 2 ? t.stride[0] : 0, d > 1 ? t.stride[d - 2] : 0};
    // The stride of a dimension with one entry is never used and may hold anything.
    if (s.rows <= 1) s.row_stride = s.cols;
    if (s.matrices <= 1) s.matrix_stride = s.rows * s.row_stride;
    return s;
}

bool is_aligned(const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

const Bf16* CudaPublisher::staged(const ConstTensor& t) {
    const Stack s = stack_of(t);
    staged_.push_back(pool_.take(s.matrices * s.rows * s.cols * sizeof(Bf16), "copy of a tensor"));
    copy(t, staged_.back().data(), DType::BF16);
    return staged_.back().at<Bf16>(0);
}

void CudaPublisher::copy(const ConstTensor& t, void* to, DType dtype) {
    const Stack s = stack_of(t);
    if (s.matrices * s.rows * s.cols == 0) return;
    params_.items[params_.num_items++] = {t.data,          t.dtype,      s.matrices, s.rows, s.cols,
                                          s.matrix_stride, s.row_stride, to,         dtype};
}

arch::MatrixStack CudaPublisher::matrices(const ConstTensor& t, const std::byte* nothing) {
    const arch::MatrixStack unread{nothing, 1, 8, 8, 8, 64};
    if (t.data == nullptr) return unread;
    const Stack s = stack_of(t);
    if (s.matrices * s.rows * s.cols == 0) return unread;
    const bool in_place = t.dtype == DType::BF16 && is_aligned(t.data) && s.row_stride % 8 == 0 &&
                          s.matrix_stride % 8 == 0 && s.row_stride >= s.cols &&
                          s.matrix_stride >= s.rows * s.row_stride;
    if (in_place) return {t.data, s.matrices, s.rows, s.cols, s.row_stride, s.matrix_stride};
    return {staged(t), s.matrices, s.rows, s.cols, s.cols, s.rows * s.cols};
}

const Bf16* CudaPublisher::rows(const ConstTensor& t) {
    const Stack s = stack_of(t);
    const bool in_place = t.dtype == DType::BF16 && is_aligned(t.data) && s.row_stride == s.cols;
    return in_place ? static_cast<const Bf16*>(t.data) : staged(t);
}

void CudaPublisher::launch(cudaStream_t stream) {
    check_cuda(kernels::launch_publish(params_, stream), "publishing tensors");
    params_.num_items = 0;
}

}  // namespace mok::layer
