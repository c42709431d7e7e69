#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/block.h"
#include "cpu/fp8_rows.h"
#include "plan/memory_map.h"

namespace mok::cpu {

// One operand of a product over a chunk of K: 128 outer (rows of tokens, or features) by 128 of K,
// zeros where it ends.
//     BF16      the values
//     Fp8Block  the elements; their scales, one an outer, stand beside them
//     Mxfp8     element times scale, a BF16 number
struct Operand {
    Block block;
    Layout layout;
    bool scaled;          // Fp8Block
    float scale[kBlock];  // where scaled; 0 behind the operand's end
};

// One orientation of an expert's FP8 weight, by plan::Fp8MatrixMap: K innermost.
struct Fp8Matrix {
    const E4m3* elements;     // [outer, padded_k]
    const std::byte* scales;  // Fp8Block: f32 [ceil(outer / 128)][padded_k / 128]; Mxfp8: tiles
    int64_t outer, padded_k;
};
Fp8Matrix fp8_matrix(const std::byte* weights, const plan::Fp8MatrixMap& map, int64_t expert);

// Rows [0, num_rows) of a tile, K from `k`.
void load_fp8_rows(Operand& out, Precision precision, const Fp8Tile& tile, int64_t num_rows,
                   int64_t k);
// Features from `outer`, K from `k`.
void load_fp8_features(Operand& out, Precision precision, const Fp8Matrix& matrix, int64_t outer,
                       int64_t k);

// A chunk of K that are slots: columns [col, col + 128) of the tile's rows, which are `cols` wide.
// In FP8 they are quantised here, from BF16, in blocks along the slots; the slots behind num_rows
// count as zeros.
struct SlotRows {
    const Bf16* rows;
    int64_t cols, num_rows;
};
void load_slots(Operand& out, Precision precision, const SlotRows& slots, int64_t col);

// acc[token][feature] += sum over the chunk's K of features * tokens, for the tokens in use; FP32:
//     BF16, Mxfp8   acc = acc + the chunk's sum, formed from zero
//     Fp8Block      acc = fma(the chunk's sum, token's scale * feature's scale, acc)
// Operands are of one precision.
void add_product(Block& acc, const Operand& features, const Operand& tokens, int64_t num_tokens);

}  // namespace mok::cpu
