#include <algorithm>

#include "arch/tensor_map.h"
#include "kernels/backward.h"

namespace mok::kernels {
namespace {

constexpr int kBoxRows = 64;

CUtensorMap rows_map(const Bf16* data, int64_t rows, int64_t cols, const Bf16* instead) {
    const bool there = data != nullptr && rows > 0;
    const int64_t num = there ? rows : 1;
    return arch::make_tensor_map({there ? data : instead, 1, num, cols, cols, num * cols},
                                 kBoxRows);
}

RowMaps row_maps(const RowBuffers& b, int64_t hidden, int64_t width, const Bf16* instead) {
    return {
        rows_map(b.x, b.x_rows, hidden, instead),     rows_map(b.d_y, b.x_rows, hidden, instead),
        rows_map(b.gate, b.rows, width, instead),     rows_map(b.up, b.rows, width, instead),
        rows_map(b.w_hidden, b.rows, width, instead), rows_map(b.d_gate, b.rows, width, instead),
        rows_map(b.d_up, b.rows, width, instead)};
}

CUtensorMap weight_map(const WeightMatrix& w, int64_t count, int64_t rows, int64_t cols) {
    return arch::make_tensor_map({w.data, std::max<int64_t>(count, 1), rows, cols, w.row_stride,
                                  std::max<int64_t>(w.expert_stride, rows * w.row_stride)},
                                 kBoxRows);
}

// Of a gradient that nobody wants: some map that is never used.
CUtensorMap gradient_map(const WeightGradient& g, int64_t count, int64_t rows, int64_t cols,
                         const CUtensorMap& unused) {
    if (!g.wanted) return unused;
    return arch::make_tensor_map({g.data, std::max<int64_t>(count, 1), rows, cols, g.row_stride,
                                  std::max<int64_t>(g.expert_stride, rows * g.row_stride)},
                                 kGradientBoxRows,
                                 g.is_bf16 ? arch::MapElement::BF16 : arch::MapElement::F32);
}

}  // namespace

BackwardMaps backward_maps(const ExpertBuffers& b) {
    const int64_t h = b.hidden, i = b.width, n = b.count;
    BackwardMaps maps;
    maps.gate = weight_map(b.gate, n, i, h);
    maps.up = weight_map(b.up, n, i, h);
    maps.down = weight_map(b.down, n, h, i);
    maps.ring = row_maps(b.ring, h, i, b.gate.data);
    maps.kept = row_maps(b.kept, h, i, b.gate.data);
    maps.out = rows_map(b.out, b.ring.rows, h, b.gate.data);
    maps.d_gate = gradient_map(b.grads->gate, n, i, h, maps.gate);
    maps.d_up = gradient_map(b.grads->up, n, i, h, maps.up);
    maps.d_down = gradient_map(b.grads->down, n, h, i, maps.down);
    return maps;
}

}  // namespace mok::kernels
