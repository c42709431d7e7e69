#pragma once

#include <cstdint>

#include "math/host_device.h"

namespace mok {

// Where the E8M0 scales of an operand lie in memory: as the tiles of 128 x 4 that Blackwell's
// tensor cores and cuBLAS read (cuBLAS documentation, "1D Block Scaling Factors Layout"). `outer`
// counts rows of the operand (M or N), `inner` blocks of 32 along K. A tile is 512 bytes and covers
// 128 x 128 elements:
//
//     offset in the tile = (outer % 32) * 16 + (outer / 32) * 4 + inner,  outer < 128, inner < 4
//
// Tiles follow each other row-major, num_inner rounded up to 4 and num_outer to 128. Scales behind
// the operand's end are 0 (2^-127; the elements there are zero).
inline constexpr int64_t kScaleTileOuter = 128;
inline constexpr int64_t kScaleTileInner = 4;
inline constexpr int64_t kScaleTileBytes = kScaleTileOuter * kScaleTileInner;

MOK_HD inline int64_t num_scale_tiles(int64_t count, int64_t per_tile) {
    return (count + per_tile - 1) / per_tile;
}

MOK_HD inline int64_t num_tiled_scales(int64_t num_outer, int64_t num_inner) {
    return num_scale_tiles(num_outer, kScaleTileOuter) *
           num_scale_tiles(num_inner, kScaleTileInner) * kScaleTileBytes;
}

MOK_HD inline int64_t scale_tile_index(int64_t outer, int64_t inner, int64_t num_inner) {
    const int64_t tile = outer / kScaleTileOuter * num_scale_tiles(num_inner, kScaleTileInner) +
                         inner / kScaleTileInner;
    const int64_t in_tile =
        outer % 32 * 16 + outer % kScaleTileOuter / 32 * 4 + inner % kScaleTileInner;
    return tile * kScaleTileBytes + in_tile;
}

}  // namespace mok
