#pragma once

#include <cstddef>
#include <cstdint>

#include "math/e4m3.h"
#include "math/saved_fp8.h"
#include "openmok/precision.h"

// FP8 rows in the places that plan/memory_map.h gives them (Fp8RowsMap). `precision` is Fp8Block or
// Mxfp8; a chunk is 128 columns of a row and begins at a multiple of 128.
namespace mok::cpu {

// The rows of a 128-row tile.
struct Fp8Tile {
    E4m3* elements;     // [128, padded]
    std::byte* scales;  // of the tile's rows
    int64_t padded;     // columns
};

// Rows as they are published and pulled: the scales of a row consecutive in both recipes.
struct Fp8Row {
    E4m3* elements;
    std::byte* scales;
};

void quantise_row(Precision precision, const Bf16* from, int64_t cols, Fp8Row to);
void place_row(Precision precision, const Fp8Row& from, const Fp8Tile& to, int64_t row);

// Columns [col, col + count) of a row of a tile, count at most 128; zeros behind them.
struct Fp8Chunk {
    const Fp8Tile& tile;
    int64_t row, col;
};
void quantise_chunk(Precision precision, const Bf16* from, int64_t count, const Fp8Chunk& to);
// The same for gate or up, by the rule of math/saved_fp8.h.
struct SavedRule {
    Saved which;
    const Activation& activation;
};
void save_chunk(Precision precision, const SavedRule& rule, const Bf16* from, int64_t count,
                const Fp8Chunk& to);
// 128 values: element times scale.
void dequantise_chunk(Precision precision, const Fp8Chunk& from, float* to);

}  // namespace mok::cpu
