#include "cpu/block.h"

#include <algorithm>
#include <cstring>

namespace mok::cpu {

void load_rows(Block& out, const Bf16* rows, int64_t stride, int64_t num_rows, int64_t col,
               int64_t num_cols) {
    const int64_t width = std::clamp<int64_t>(num_cols - col, 0, kBlock);
    for (int64_t r = 0; r < num_rows; ++r) {
        float* to = out.at + r * kBlock;
        const Bf16* from = rows + r * stride + col;
        for (int64_t c = 0; c < width; ++c) to[c] = to_f32(from[c]);
        std::fill(to + width, to + kBlock, 0.0f);
    }
    std::fill(out.at + num_rows * kBlock, out.at + kBlock * kBlock, 0.0f);
}

void load_matrix(Block& out, const ConstTensor& t, int64_t index, int64_t row, int64_t col) {
    const int d = t.dims - 2;
    const int64_t num_rows = std::clamp<int64_t>(t.shape[d] - row, 0, kBlock);
    const int64_t stride = t.stride[d];
    const int64_t first = (d > 0 ? index * t.stride[0] : 0) + row * stride;
    if (t.dtype == DType::BF16) {
        load_rows(out, static_cast<const Bf16*>(t.data) + first, stride, num_rows, col,
                  t.shape[d + 1]);
        return;
    }
    const int64_t width = std::clamp<int64_t>(t.shape[d + 1] - col, 0, kBlock);
    const float* data = static_cast<const float*>(t.data) + first + col;
    std::memset(out.at, 0, sizeof(out.at));
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t c = 0; c < width; ++c) {
            out.at[r * kBlock + c] = to_f32(to_bf16(data[r * stride + c]));
        }
    }
}

void multiply_rows(Block& out, const Block& a, Layout a_layout, const Block& b, Layout b_layout,
                   int64_t num_rows) {
    for (int64_t j = 0; j < num_rows; j += kBlockCols) {
        const float* part = b.at + (b_layout == Layout::KInner ? j * kBlock : j);
        multiply_add(out.at + j * kBlock, a.at, a_layout, part, b_layout);
    }
}

float load_exact(const void* data, DType dtype, int64_t at) {
    return dtype == DType::BF16 ? to_f32(static_cast<const Bf16*>(data)[at])
                                : static_cast<const float*>(data)[at];
}

float load_rounded(const void* data, DType dtype, int64_t at) {
    return to_f32(to_bf16(load_exact(data, dtype, at)));
}

void store_rounded(void* data, DType dtype, int64_t at, float value) {
    if (dtype == DType::BF16) {
        static_cast<Bf16*>(data)[at] = to_bf16(value);
    } else {
        static_cast<float*>(data)[at] = value;
    }
}

}  // namespace mok::cpu
