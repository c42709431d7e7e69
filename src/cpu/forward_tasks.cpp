#include <algorithm>

#include "cpu/expert.h"
#include "cpu/tasks.h"
#include "math/activation_math.h"

namespace mok::cpu {

// gate = x Wg^T + bg, up = x Wu^T + bu;  hidden = activate(gate, up) from the FP32 sums.
// GateUp writes hidden, and gate and up rounded where the context keeps them; Replay writes gate
// and up rounded, the same bits.
void gate_up(const RankPass& d, const plan::Task& task) {
    static thread_local Block x, w, gate, up;
    const ExpertView e = expert_of_tile(d, task.tile);
    const TileRows in = tile_rows(d, Rows::X, task.tile);
    const int64_t col = int64_t{task.part} * plan::kGateUpCols;
    const int64_t num_cols = std::min<int64_t>(plan::kGateUpCols, e.width - col);

    clear_rows(gate, in.num);
    clear_rows(up, in.num);
    for (int64_t k = 0; k < in.cols; k += kBlock) {
        load_rows(x, in.at, in.cols, in.num, k, in.cols);
        load_matrix(w, e.gate, e.index, col, k);
        multiply_rows(gate, w, Layout::KInner, x, Layout::KInner, in.num);
        load_matrix(w, e.up, e.index, col, k);
        multiply_rows(up, w, Layout::KInner, x, Layout::KInner, in.num);
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
            const TileRows to_gate = tile_rows(d, Rows::Gate, task.tile);
            const TileRows to_up = tile_rows(d, Rows::Up, task.tile);
            for (int64_t i = 0; i < num_cols; ++i) {
                to_gate.at[r * e.width + col + i] = saved_gate(d.activation, g[i]);
                to_up.at[r * e.width + col + i] = saved_up(d.activation, u[i]);
            }
        }
        if (activates) {
            Bf16* hidden = tile_rows(d, Rows::WHidden, task.tile).at + r * e.width + col;
            for (int64_t i = 0; i < num_cols; ++i) {
                hidden[i] = to_bf16(activate(d.activation, g[i], u[i]));
            }
        }
    }
}

// y = hidden Wd^T + bd, rounded once.
void down(const RankPass& d, const plan::Task& task) {
    static thread_local Block hidden, w, y[kOutBlocks];
    const ExpertView e = expert_of_tile(d, task.tile);
    const TileRows in = tile_rows(d, Rows::WHidden, task.tile);
    const TileRows out = tile_rows(d, Rows::Out, task.tile);
    const int64_t first = int64_t{task.part} * plan::kOutCols;
    const int64_t blocks = out_blocks(first, out.cols);
    for (int64_t i = 0; i < blocks; ++i) clear_rows(y[i], in.num);
    for (int64_t k = 0; k < in.cols; k += kBlock) {
        load_rows(hidden, in.at, in.cols, in.num, k, in.cols);
        for (int64_t i = 0; i < blocks; ++i) {
            load_matrix(w, e.down, e.index, first + i * kBlock, k);
            multiply_rows(y[i], w, Layout::KInner, hidden, Layout::KInner, in.num);
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
