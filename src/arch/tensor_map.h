#pragma once

#include <cuda.h>

#include <cstdint>

namespace mok::arch {

// A stack of matrices [count, rows, cols] with strides in elements (multiples of 16 bytes, base
// 16-byte aligned), cut into boxes of box_rows x 128 bytes (64 BF16, 32 FP32 or 128 FP8 columns)
// with the 128-byte swizzle, or of box_rows x 64 bytes without one (HalfRowOfBytes). What lies
// outside a matrix reads as zero and is not written. Throws std::runtime_error where the driver
// refuses. A map depends on nothing but these arguments: each thread remembers those that it has
// made.
struct MatrixStack {
    const void* data;
    int64_t count, rows, cols;
    int64_t row_stride, matrix_stride;

    bool operator==(const MatrixStack&) const = default;
};
// Byte, HalfRowOfBytes: FP8. ScaleTile: rows of 128 words of four E8M0 scales, a tile of
// math/scale_tiles.h each, in boxes of box_rows whole rows without swizzle.
enum class MapElement { BF16, F32, Byte, HalfRowOfBytes, ScaleTile };
CUtensorMap make_tensor_map(const MatrixStack& stack, int box_rows,
                            MapElement element = MapElement::BF16);
// The same for boxes whose rows come by fours (load_tile_by_fours): row 4m + i of a box lies at
// place m + i * box_rows / 4. The rows are a multiple of 4.
CUtensorMap make_tensor_map_by_fours(const MatrixStack& stack, int box_rows,
                                     MapElement element = MapElement::BF16);

}  // namespace mok::arch
