#pragma once

#include "plan/problem.h"

namespace mok::plan {

// Minibatch rows that give each grouped GEMM of a pass two full waves on `workers` workers with
// tiles of 128 x 256 (design.md section 8): 2 * W * tile_m * tile_n / (narrowest phase's width).
// The narrowest phase of the forward is min(2I, H) columns wide, of the backward min(I, H).
struct Granularity {
    int32_t floor_rows;    // the smallest b with two full waves
    int32_t default_rows;  // the floor rounded up to a whole tile
};

MOK_HD inline Granularity granularity(int64_t workers, int64_t narrowest_cols) {
    const int64_t area = int64_t{kTileRows} * kOutCols;
    const int64_t floor_rows = ceil_div64(2 * workers * area, narrowest_cols);
    const int64_t rows = round_up(floor_rows < kTileRows ? kTileRows : floor_rows, kTileRows);
    return {static_cast<int32_t>(floor_rows), static_cast<int32_t>(rows)};
}
MOK_HD inline Granularity forward_granularity(int64_t workers, int64_t hidden,
                                              int64_t intermediate) {
    return granularity(workers, 2 * intermediate < hidden ? 2 * intermediate : hidden);
}
MOK_HD inline Granularity backward_granularity(int64_t workers, int64_t hidden,
                                               int64_t intermediate) {
    return granularity(workers, intermediate < hidden ? intermediate : hidden);
}

}  // namespace mok::plan
