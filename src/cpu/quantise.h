#pragma once

#include <cstdint>
#include <vector>

#include "math/bf16.h"
#include "math/block_scale.h"
#include "math/e4m3.h"

namespace mok::cpu {

// A row-major BF16 matrix whose rows lie `stride` elements apart.
struct Bf16Matrix {
    const Bf16* data;
    int64_t rows;
    int64_t cols;
    int64_t stride;
};

// An operand of a product, K innermost. Recipes: Fp8Block and Mxfp8, see math/block_scale.h.
template <class Recipe>
struct Quantised {
    using Scale = typename Recipe::Scale;

    int64_t outer = 0;           // M or N
    int64_t k = 0;               // without the padding
    int64_t num_blocks = 0;      // along k, the last one padded with zeros
    int64_t rows_per_scale = 1;  // 128 for the weights of Fp8Block
    std::vector<E4m3> elements;  // [outer][num_blocks * kBlock]
    std::vector<Scale> scales;   // Recipe::scale_index; Fp8Block row-major, Mxfp8 in 128 x 4 tiles

    int64_t padded_k() const { return num_blocks * Recipe::kBlock; }
    E4m3 element_at(int64_t row, int64_t col) const { return elements[row * padded_k() + col]; }
    Scale scale_at(int64_t row, int64_t block) const {
        return scales[Recipe::scale_index(row / rows_per_scale, block, num_blocks)];
    }
};

// Blocks along columns: outer is the source's rows, K its columns.
template <class Recipe>
Quantised<Recipe> quantise_rows(const Bf16Matrix& from);

// The transposed operand, blocks along rows: outer is the source's columns, K its rows. It is made
// from the source, never from other elements of FP8.
template <class Recipe>
Quantised<Recipe> quantise_columns(const Bf16Matrix& from);

// A weight [rows][cols] in both orientations. In Fp8Block 128 x 128 elements share a scale, so the
// two hold the same elements; in Mxfp8 each orientation has blocks and scales of its own.
template <class Recipe>
struct QuantisedWeight {
    Quantised<Recipe> by_rows;     // outer: rows, K: cols
    Quantised<Recipe> by_columns;  // outer: cols, K: rows
};

template <class Recipe>
QuantisedWeight<Recipe> quantise_weights(const Bf16Matrix& from);

}  // namespace mok::cpu
