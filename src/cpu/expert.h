#pragma once

#include "cpu/block.h"
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
    int64_t width;  // I or S
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
                d.problem().shared_intermediate};
    }
    return {w.gate,
            w.up,
            w.down,
            w.gate_bias,
            w.up_bias,
            w.down_bias,
            d.table().tile_expert[tile],
            d.problem().intermediate};
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
