#include <algorithm>

#include "cpu/expert.h"
#include "cpu/tasks.h"
#include "math/activation_math.h"

namespace mok::cpu {
namespace {

// Sum of a[i] * b[i] in eight interleaved partial sums, then these in order.
template <class A, class B>
float dot(int64_t num, A&& a, B&& b) {
    constexpr int64_t kLanes = 8;
    float lane[kLanes] = {};
    for (int64_t i = 0; i < num; ++i) lane[i % kLanes] += a(i) * b(i);
    float sum = 0.0f;
    for (const float part : lane) sum += part;
    return sum;
}

// The share of the down bias in the router gradients of a tile: <d_y, bd>, into the last partial.
void down_bias_partial(const RankPass& d, const ExpertView& e, int32_t tile) {
    const TileRows d_y = tile_rows(d, Rows::DY, tile);
    const int64_t parts = plan::gate_up_parts(d.problem(), plan::is_shared_tile(d.problem(), tile));
    float* partials = tile_router_partials(d, tile);
    const ConstTensor& bias = e.down_bias;
    for (int64_t r = 0; r < d_y.num; ++r) {
        float sum = 0.0f;
        if (bias.present()) {
            const Bf16* row = d_y.at + r * d_y.cols;
            const int64_t at = e.index * bias.stride[0];
            sum = dot(
                d_y.cols, [&](int64_t i) { return to_f32(row[i]); },
                [&](int64_t i) { return load_rounded(bias.data, bias.dtype, at + i); });
        }
        partials[r * (parts + 1) + parts] = sum;
    }
}

// Columns of a row's saved gate or up.
struct RowColumns {
    int64_t row, col, num_cols;
};
void load_saved(float* to, const RankPass& d, int32_t tile, Saved which, const RowColumns& at) {
    const bool is_gate = which == Saved::Gate;
    if (is_fp8_tile(d, tile)) {
        const Fp8Tile from = fp8_tile(d, is_gate ? Rows8::Gate : Rows8::Up, tile);
        return dequantise_chunk(d.problem().precision, {from, at.row, at.col}, to);
    }
    const TileRows from = tile_rows(d, is_gate ? Rows::Gate : Rows::Up, tile);
    const Bf16* values = from.at + at.row * from.cols + at.col;
    for (int64_t i = 0; i < at.num_cols; ++i) to[i] = to_f32(values[i]);
}

// Columns [128 block, 128 block + 128) of a DownDgrad task's tile.
void down_dgrad_block(const RankPass& d, const ExpertView& e, int32_t tile, int64_t block) {
    static thread_local Operand d_y, w;
    static thread_local Block acc;
    const TileRows in = tile_rows(d, Rows::DY, tile);
    const int64_t col = block * kBlock;
    const int64_t num_cols = std::min<int64_t>(kBlock, e.width - col);

    clear_rows(acc, in.num);
    for (int64_t k = 0; k < in.cols; k += kBlock) {
        load_tile(d_y, d, tile, {Rows::DY, Rows8::DY}, k);
        load_weight(w, d, e, {Matrix::Down, Along::Rows, col, k});
        add_product(acc, w, d_y, in.num);
    }

    const bool shared = plan::is_shared_tile(d.problem(), tile);
    const bool quantises = is_fp8_tile(d, tile) && d.pass.kind != plan::PassKind::Wgrad;
    const int64_t partial_stride = plan::gate_up_parts(d.problem(), shared) + 1;
    float* partials = tile_router_partials(d, tile);
    const float* weights = tile_row_weights(d, tile);
    const TileRows d_gate = tile_rows(d, Rows::DGate, tile);
    const TileRows d_up = tile_rows(d, Rows::DUp, tile);
    const TileRows w_hidden = tile_rows(d, Rows::WHidden, tile);
    for (int64_t r = 0; r < in.num; ++r) {
        const int64_t at = r * e.width + col;
        const float weight = weights[r];
        const float* d_hidden_raw = acc.at + r * kBlock;
        float gate[kBlock], up[kBlock], hidden[kBlock];
        load_saved(gate, d, tile, Saved::Gate, {r, col, num_cols});
        load_saved(up, d, tile, Saved::Up, {r, col, num_cols});
        for (int64_t i = 0; i < num_cols; ++i) {
            const ActivationGrad a = activate_grad(d.activation, gate[i], up[i]);
            const float d_hidden = weight * d_hidden_raw[i];
            hidden[i] = a.hidden;
            d_gate.at[at + i] = to_bf16(gate_gradient(a, d_hidden));
            d_up.at[at + i] = to_bf16(up_gradient(a, d_hidden));
            w_hidden.at[at + i] = to_bf16(weight * a.hidden);
        }
        if (quantises) {
            quantise_chunk(e.precision, d_gate.at + at, num_cols,
                           {fp8_tile(d, Rows8::DGate, tile), r, col});
            quantise_chunk(e.precision, d_up.at + at, num_cols,
                           {fp8_tile(d, Rows8::DUp, tile), r, col});
        }
        partials[r * partial_stride + block] = dot(
            num_cols, [&](int64_t i) { return d_hidden_raw[i]; },
            [&](int64_t i) { return hidden[i]; });
    }
}

}  // namespace

// d_hidden' = d_y Wd, then with the saved, rounded gate and up of each element:
//     d_w += d_hidden' * hidden                 (partial sums of 128 columns, FP32)
//     d_hidden = w * d_hidden',  d_gate = d_hidden * d hidden/d gate,  d_up likewise
//     w_hidden = round(w * hidden), the operand of d_Wd
// In FP8 d_gate and d_up are quantised by rows after they are rounded, for GateUpDgrad.
void down_dgrad(const RankPass& d, const plan::Task& task) {
    const ExpertView e = expert_of_tile(d, task.tile);
    constexpr int64_t kBlocks = plan::kDownDgradCols / kBlock;
    for (int64_t block = task.part * kBlocks;
         block < (task.part + 1) * kBlocks && block * kBlock < e.width; ++block) {
        down_dgrad_block(d, e, task.tile, block);
    }
    if (task.part == 0) down_bias_partial(d, e, task.tile);
}

// d_x = d_gate Wg + d_up Wu in one accumulation: all of gate's k, then all of up's.
void gate_up_dgrad(const RankPass& d, const plan::Task& task) {
    static thread_local Operand rows, w;
    static thread_local Block acc[kOutBlocks];
    const ExpertView e = expert_of_tile(d, task.tile);
    const TileRows out = tile_rows(d, Rows::Out, task.tile);
    const int64_t first = int64_t{task.part} * plan::kOutCols;
    const int64_t blocks = out_blocks(first, out.cols);
    for (int64_t i = 0; i < blocks; ++i) clear_rows(acc[i], out.num);
    for (const bool is_up : {false, true}) {
        const RowOperand in =
            is_up ? RowOperand{Rows::DUp, Rows8::DUp} : RowOperand{Rows::DGate, Rows8::DGate};
        const Matrix matrix = is_up ? Matrix::Up : Matrix::Gate;
        for (int64_t k = 0; k < e.width; k += kBlock) {
            load_tile(rows, d, task.tile, in, k);
            for (int64_t i = 0; i < blocks; ++i) {
                load_weight(w, d, e, {matrix, Along::Rows, first + i * kBlock, k});
                add_product(acc[i], w, rows, out.num);
            }
        }
    }
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t col = first + i * kBlock;
        const int64_t num_cols = std::min<int64_t>(kBlock, out.cols - col);
        for (int64_t r = 0; r < out.num; ++r) {
            for (int64_t c = 0; c < num_cols; ++c) {
                out.at[r * out.cols + col + c] = to_bf16(acc[i].at[r * kBlock + c]);
            }
        }
    }
}

}  // namespace mok::cpu
