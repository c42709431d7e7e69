#pragma once

#include "cpu/block.h"
#include "cpu/operand.h"
#include "cpu/rank_pass.h"

namespace mok::cpu {

// The weights of the expert that a tile belongs to: the routed ones with the expert's index, or the
// shared expert's, which has no biases.
struct ExpertView {
    const ConstTensor& gate;
    const ConstTensor& up;
    const ConstTensor& down;
    const ConstTensor& gate_bias;
    const ConstTensor& up_bias;
    const ConstTensor& down_bias;
    int64_t index;
    int64_t width;        // I or S
    Precision precision;  // of its products
};

inline ExpertView expert_of_tile(const RankPass& d, int32_t tile) {
    static const ConstTensor kAbsent;
    const Weights& w = d.weights;
    if (plan::is_shared_tile(d.problem(), tile)) {
        return {w.shared_gate,
                w.shared_up,
                w.shared_down,
                kAbsent,
                kAbsent,
                kAbsent,
                0,
                d.problem().shared_intermediate,
                Precision::BF16};
    }
    return {w.gate,
            w.up,
            w.down,
            w.gate_bias,
            w.up_bias,
            w.down_bias,
            d.table().tile_expert[tile],
            d.problem().intermediate,
            d.problem().precision};
}

// The weights of an expert as operands of a forward (K along the columns) and of the input
// gradients (K along the rows).
enum class Matrix { Gate, Up, Down };
enum class Along { Columns, Rows };

inline const ConstTensor& weight_of(const ExpertView& e, Matrix matrix) {
    return matrix == Matrix::Gate ? e.gate : matrix == Matrix::Up ? e.up : e.down;
}
inline const plan::Fp8MatrixMap& fp8_map_of(const plan::Fp8WeightsMap& map, Matrix matrix,
                                            Along k_along) {
    const bool columns = k_along == Along::Columns;
    switch (matrix) {
        case Matrix::Gate:
            return columns ? map.gate : map.gate_t;
        case Matrix::Up:
            return columns ? map.up : map.up_t;
        default:
            return columns ? map.down : map.down_t;
    }
}

struct WeightChunk {
    Matrix matrix;
    Along k_along;
    int64_t outer, k;  // of the first element
};
inline void load_weight(Operand& out, const RankPass& d, const ExpertView& e,
                        const WeightChunk& at) {
    if (e.precision != Precision::BF16) {
        const plan::Fp8WeightsMap map = plan::fp8_weights_map(d.problem());
        const Fp8Matrix matrix =
            fp8_matrix(d.fp8_weights, fp8_map_of(map, at.matrix, at.k_along), e.index);
        return load_fp8_features(out, e.precision, matrix, at.outer, at.k);
    }
    out.scaled = false;
    out.layout = at.k_along == Along::Columns ? Layout::KInner : Layout::KOuter;
    const bool columns = at.k_along == Along::Columns;
    load_matrix(out.block, weight_of(e, at.matrix), e.index, columns ? at.outer : at.k,
                columns ? at.k : at.outer);
}

// A tile's rows as an operand, K from `k`: where its products are of FP8 from rows8, else from
// rows.
struct RowOperand {
    Rows rows;
    Rows8 rows8;
};
inline void load_tile(Operand& out, const RankPass& d, int32_t tile, RowOperand from, int64_t k) {
    const TileRows rows = tile_rows(d, from.rows, tile);
    if (is_fp8_tile(d, tile)) {
        return load_fp8_rows(out, d.problem().precision, fp8_tile(d, from.rows8, tile), rows.num,
                             k);
    }
    out.scaled = false;
    out.layout = Layout::KInner;
    load_rows(out.block, rows.at, rows.cols, rows.num, k, rows.cols);
}

// Elements [col, col + num) of a bias vector in FP32, zeros where there is no bias.
inline void load_bias(float* out, const ConstTensor& bias, int64_t index, int64_t col,
                      int64_t num) {
    for (int64_t i = 0; i < num; ++i) {
        out[i] = bias.present()
                     ? load_rounded(bias.data, bias.dtype, index * bias.stride[0] + col + i)
                     : 0.0f;
    }
}

// Column blocks of an output tile of y or d_x that begins at column `first` of `cols`.
inline constexpr int64_t kOutBlocks = plan::kOutCols / kBlock;
inline int64_t out_blocks(int64_t first, int64_t cols) {
    const int64_t blocks = plan::ceil_div64(cols - first, kBlock);
    return blocks < kOutBlocks ? blocks : kOutBlocks;
}

// Clears the rows of an accumulator that are in use.
inline void clear_rows(Block& block, int64_t num_rows) {
    const int64_t rows = plan::round_up(num_rows, kBlockCols);
    for (int64_t i = 0; i < rows * kBlock; ++i) block.at[i] = 0.0f;
}

}  // namespace mok::cpu
