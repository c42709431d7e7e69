#include <algorithm>

#include "cpu/expert.h"
#include "cpu/tasks.h"
#include "math/activation_math.h"

namespace mok::cpu {

namespace {

// Columns [col, col + num_cols) of a tile's gate or up, kept for the backward.
struct SavedColumns {
    Saved which;
    int64_t col, num_cols;
};
void save(const RankPass& d, const plan::Task& task, const SavedColumns& at, int64_t row,
          const float* values) {
    const bool is_gate = at.which == Saved::Gate;
    Bf16 rounded[kBlock];
    for (int64_t i = 0; i < at.num_cols; ++i) {
        rounded[i] =
            is_gate ? saved_gate(d.activation, values[i]) : saved_up(d.activation, values[i]);
    }
    if (is_fp8_tile(d, task.tile)) {
        const Fp8Tile to = fp8_tile(d, is_gate ? Rows8::Gate : Rows8::Up, task.tile);
        return save_chunk(d.problem().precision, {at.which, d.activation}, rounded, at.num_cols,
                          {to, row, at.col});
    }
    const TileRows to = tile_rows(d, is_gate ? Rows::Gate : Rows::Up, task.tile);
    std::copy_n(rounded, at.num_cols, to.at + row * to.cols + at.col);
}

}  // namespace

// gate = x Wg^T + bg, up = x Wu^T + bu;  hidden = activate(gate, up) from the FP32 sums.
// GateUp writes hidden, and gate and up rounded where the context keeps them; Replay writes gate
// and up rounded, the same bits. In FP8 all three are quantised after that rounding.
void gate_up(const RankPass& d, const plan::Task& task) {
    static thread_local Operand x, w;
    static thread_local Block gate, up;
    const ExpertView e = expert_of_tile(d, task.tile);
    const TileRows in = tile_rows(d, Rows::X, task.tile);
    const int64_t col = int64_t{task.part} * plan::kGateUpCols;
    const int64_t num_cols = std::min<int64_t>(plan::kGateUpCols, e.width - col);

    clear_rows(gate, in.num);
    clear_rows(up, in.num);
    for (int64_t k = 0; k < in.cols; k += kBlock) {
        load_tile(x, d, task.tile, {Rows::X, Rows8::X}, k);
        load_weight(w, d, e, {Matrix::Gate, Along::Columns, col, k});
        add_product(gate, w, x, in.num);
        load_weight(w, d, e, {Matrix::Up, Along::Columns, col, k});
        add_product(up, w, x, in.num);
    }

    float gate_bias[kBlock], up_bias[kBlock];
    load_bias(gate_bias, e.gate_bias, e.index, col, num_cols);
    load_bias(up_bias, e.up_bias, e.index, col, num_cols);
    const bool shared = plan::is_shared_tile(d.problem(), task.tile);
    const bool replay = task.kind == plan::TaskKind::Replay;
    const bool kept = shared || plan::in_context(d.problem(), task.tile * plan::kTileRows);
    const bool saves = replay || (d.saves_context && kept);
    const bool activates = d.pass.kind == plan::PassKind::Forward;
    for (int64_t r = 0; r < in.num; ++r) {
        float* g = gate.at + r * kBlock;
        float* u = up.at + r * kBlock;
        for (int64_t i = 0; i < num_cols; ++i) {
            g[i] += gate_bias[i];
            u[i] += up_bias[i];
        }
        if (saves) {
            save(d, task, {Saved::Gate, col, num_cols}, r, g);
            save(d, task, {Saved::Up, col, num_cols}, r, u);
        }
        if (!activates) continue;
        Bf16 hidden[kBlock];
        for (int64_t i = 0; i < num_cols; ++i) {
            hidden[i] = to_bf16(activate(d.activation, g[i], u[i]));
        }
        if (is_fp8_tile(d, task.tile)) {
            const Fp8Tile to = fp8_tile(d, Rows8::Hidden, task.tile);
            quantise_chunk(e.precision, hidden, num_cols, {to, r, col});
        } else {
            std::copy_n(hidden, num_cols,
                        tile_rows(d, Rows::WHidden, task.tile).at + r * e.width + col);
        }
    }
}

// y = hidden Wd^T + bd, rounded once.
void down(const RankPass& d, const plan::Task& task) {
    static thread_local Operand hidden, w;
    static thread_local Block y[kOutBlocks];
    const ExpertView e = expert_of_tile(d, task.tile);
    const TileRows in = tile_rows(d, Rows::WHidden, task.tile);
    const TileRows out = tile_rows(d, Rows::Out, task.tile);
    const int64_t first = int64_t{task.part} * plan::kOutCols;
    const int64_t blocks = out_blocks(first, out.cols);
    for (int64_t i = 0; i < blocks; ++i) clear_rows(y[i], in.num);
    for (int64_t k = 0; k < in.cols; k += kBlock) {
        load_tile(hidden, d, task.tile, {Rows::WHidden, Rows8::Hidden}, k);
        for (int64_t i = 0; i < blocks; ++i) {
            load_weight(w, d, e, {Matrix::Down, Along::Columns, first + i * kBlock, k});
            add_product(y[i], w, hidden, in.num);
        }
    }
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t col = first + i * kBlock;
        const int64_t num_cols = std::min<int64_t>(kBlock, out.cols - col);
        float bias[kBlock];
        load_bias(bias, e.down_bias, e.index, col, num_cols);
        for (int64_t r = 0; r < out.num; ++r) {
            for (int64_t c = 0; c < num_cols; ++c) {
                out.at[r * out.cols + col + c] = to_bf16(y[i].at[r * kBlock + c] + bias[c]);
            }
        }
    }
}

}  // namespace mok::cpu
