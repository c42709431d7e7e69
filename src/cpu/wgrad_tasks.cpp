#include <algorithm>

#include "cpu/expert.h"
#include "cpu/tasks.h"

namespace mok::cpu {
namespace {

// What one of the three weight gradients is made of.
struct Wgrad {
    Rows left;      // its columns are the gradient's rows
    Rows right;     // its columns are the gradient's columns
    Tensor grad;    // [E_l, rows, cols] or, shared, [rows, cols]
    Tensor bias;    // gradient of the bias over the gradient's rows
    bool weighted;  // the bias gradient sums w * left instead of left
    int64_t rows, cols;
    int64_t scratch, bias_scratch;  // offsets of the partial sums of one expert
};

Wgrad describe(const RankPass& d, plan::TaskKind kind, bool shared) {
    const int64_t h = d.problem().hidden, i = plan::width_of(d.problem(), shared);
    const WeightGrads& g = d.grads;
    const int64_t biases = 3 * h * i;
    const Tensor none;
    switch (kind) {
        case plan::TaskKind::GateWgrad:
            return {Rows::DGate,
                    Rows::X,
                    shared ? g.shared_gate : g.gate,
                    shared ? none : g.gate_bias,
                    false,
                    i,
                    h,
                    0,
                    biases};
        case plan::TaskKind::UpWgrad:
            return {Rows::DUp,
                    Rows::X,
                    shared ? g.shared_up : g.up,
                    shared ? none : g.up_bias,
                    false,
                    i,
                    h,
                    h * i,
                    biases + i};
        default:
            return {Rows::DY,
                    Rows::WHidden,
                    shared ? g.shared_down : g.down,
                    shared ? none : g.down_bias,
                    true,
                    h,
                    i,
                    2 * h * i,
                    biases + 2 * i};
    }
}

// The sums of consecutive elements before and after a piece: from nothing, the scratch or (Chain)
// the caller's tensor; to the scratch or the caller's tensor.
struct Sums {
    const RankPass& d;
    const Tensor& grad;
    GradMode mode;
    const plan::Piece& piece;

    void begin(float* sums, int64_t num, int64_t scratch, int64_t at) const {
        if (piece.continues) {
            std::copy_n(d.wgrad_scratch + scratch, num, sums);
        } else if (mode == GradMode::Chain) {
            for (int64_t i = 0; i < num; ++i) sums[i] = load_exact(grad.data, grad.dtype, at + i);
        } else {
            std::fill_n(sums, num, 0.0f);
        }
    }
    void end(const float* sums, int64_t num, int64_t scratch, int64_t at) const {
        if (!piece.ends) {
            std::copy_n(sums, num, d.wgrad_scratch + scratch);
        } else if (grad.dtype == DType::BF16) {
            store(static_cast<Bf16*>(grad.data) + at, sums, num);
        } else {
            store(static_cast<float*>(grad.data) + at, sums, num);
        }
    }

  private:
    static float widen(float v) { return v; }
    static float widen(Bf16 v) { return to_f32(v); }
    static void round_to(float& to, float v) { to = v; }
    static void round_to(Bf16& to, float v) { to = to_bf16(v); }

    template <class Element>
    void store(Element* to, const float* sums, int64_t num) const {
        if (mode == GradMode::Accumulate) {
            for (int64_t i = 0; i < num; ++i) round_to(to[i], widen(to[i]) + sums[i]);
        } else {
            for (int64_t i = 0; i < num; ++i) round_to(to[i], sums[i]);
        }
    }
};

// grad[r][c] += sum over the piece's slots, in slot order, of left[slot][r] * right[slot][c]. In
// FP8 both are quantised along the slots of each tile, from BF16.
void matrix_gradient(const RankPass& d, const Wgrad& g, const plan::Piece& piece,
                     plan::WgradTile tile_at, GradMode mode) {
    static thread_local Operand left, right;
    static thread_local Block acc;
    const int64_t row = tile_at.row, first = tile_at.col;
    const int64_t num_rows = std::min<int64_t>(kBlock, g.rows - row);
    const int row_dim = g.grad.dims - 2;
    const int64_t expert = g.grad.dims > 2 ? piece.expert * g.grad.stride[0] : 0;
    const Sums sums{d, g.grad, mode, piece};
    for (int64_t col = first; col < std::min<int64_t>(first + plan::kWgradCols, g.cols);
         col += kBlock) {
        const int64_t num_cols = std::min<int64_t>(kBlock, g.cols - col);
        const auto at = [&](int64_t r) {
            return expert + (row + r) * g.grad.stride[row_dim] + col;
        };
        const auto scratch = [&](int64_t r) { return g.scratch + (row + r) * g.cols + col; };
        clear_rows(acc, kBlock);
        for (int64_t r = 0; r < num_rows; ++r) {
            sums.begin(acc.at + r * kBlock, num_cols, scratch(r), at(r));
        }
        for (int32_t tile = piece.begin / plan::kTileRows; tile < piece.end / plan::kTileRows;
             ++tile) {
            const TileRows l = tile_rows(d, g.left, tile), r = tile_rows(d, g.right, tile);
            const Precision precision =
                is_fp8_tile(d, tile) ? d.problem().precision : Precision::BF16;
            load_slots(left, precision, {l.at, l.cols, l.num}, row);
            load_slots(right, precision, {r.at, r.cols, r.num}, col);
            add_product(acc, right, left, num_rows);
        }
        for (int64_t r = 0; r < num_rows; ++r) {
            sums.end(acc.at + r * kBlock, num_cols, scratch(r), at(r));
        }
    }
}

// bias_grad[r] += sum over the piece's real rows, in slot order, of left[slot][r] (times w).
void bias_gradient(const RankPass& d, const Wgrad& g, const plan::Piece& piece, int64_t row,
                   GradMode mode) {
    const int64_t num_rows = std::min<int64_t>(kBlock, g.rows - row);
    const int64_t at = piece.expert * g.bias.stride[0] + row;
    const Sums sums{d, g.bias, mode, piece};
    float acc[kBlock];
    sums.begin(acc, num_rows, g.bias_scratch + row, at);
    for (int32_t tile = piece.begin / plan::kTileRows; tile < piece.end / plan::kTileRows; ++tile) {
        const TileRows rows = tile_rows(d, g.left, tile);
        const float* weights = tile_row_weights(d, tile);
        for (int64_t slot = 0; slot < rows.num; ++slot) {
            const float weight = g.weighted ? weights[slot] : 1.0f;
            for (int64_t r = 0; r < num_rows; ++r) {
                acc[r] += weight * to_f32(rows.at[slot * rows.cols + row + r]);
            }
        }
    }
    sums.end(acc, num_rows, g.bias_scratch + row, at);
}

}  // namespace

// d_Wg = d_gate^T x,  d_Wu = d_up^T x,  d_Wd = d_y^T (w * hidden), and the biases' gradients.
void weight_gradient(const RankPass& d, const plan::Task& task) {
    const bool shared = task.piece < 0;
    const Wgrad g = describe(d, task.kind, shared);
    const plan::Problem& p = d.problem();
    const plan::Piece all_tokens{0, plan::max_tiles(p) * plan::kTileRows,
                                 (plan::max_tiles(p) + plan::shared_tiles(p)) * plan::kTileRows,
                                 false, true};
    const plan::Piece piece =
        shared ? all_tokens : plan::piece_at(p, d.table(), task.macro, task.piece);
    const GradMode mode = shared ? d.grads.shared_mode : d.grads.mode;
    // Without rows nothing is added: the old value stays to the bit, -0 included.
    if (piece.begin == piece.end && mode != GradMode::Overwrite) return;
    const plan::WgradTile at = plan::wgrad_tile(task.kind, static_cast<int32_t>(g.rows),
                                                static_cast<int32_t>(g.cols), task.part);
    if (g.grad.present()) matrix_gradient(d, g, piece, at, mode);
    if (g.bias.present() && at.col == 0) bias_gradient(d, g, piece, at.row, mode);
}

}  // namespace mok::cpu
