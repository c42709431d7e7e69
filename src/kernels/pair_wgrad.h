#pragma once

#include <cstdint>

#include "math/host_device.h"

namespace mok::kernels {

// Tiles of d_down follow each other along the rows (plan::wgrad_tile), so neighbours have the same
// operand A, d_y, and different ones B. A pair of CTAs makes one product of two tasks that have the
// same B: of tiles one below the other. So pairs take the parts of a piece in another order, which
// nobody else sees: tasks of a piece wait for the same and for none of each other.
//
// The part that is worked on in the place of part `part`, of rows x cols tiles, whose part 0 is
// task `begin` of the program. Tasks 2i and 2i + 1 are a pair's. A permutation of 0 .. rows * cols
// - 1; with an odd number of rows parts keep their places.
MOK_HD constexpr int32_t part_for_pairs(int32_t part, int64_t begin, int32_t rows, int32_t cols) {
    if (rows % 2 != 0) return part;
    const int32_t last = rows * cols - 1;
    int32_t at = part;
    if (begin % 2 != 0) {
        // The first and the last part belong to pairs with other tasks: the last two tiles.
        if (part == last) return last;
        at = part == 0 ? last - 1 : part - 1;
    }
    const int32_t pair = at / 2;
    return (pair / cols * 2 + at % 2) * cols + pair % cols;
}

}  // namespace mok::kernels
