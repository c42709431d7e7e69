#pragma once

#include "arch/copy.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/block_scaled_backward.h"
#include "kernels/block_scaled_backward_layout.cuh"

// The loader role of the MXFP8 backward: one thread of every CTA. For every block of 128 of k it
// hands over an operand stage, with 256 rows of weights and their scales where weights are
// multiplied, and brings what the makers make the other operands of: 128 columns of 128 rows, or of
// a weight gradient twice 64 slots of 128 + 256 columns.
namespace mok::kernels::block_scaled {

class BackwardLoader {
  public:
    __device__ BackwardLoader(const BackwardParams& p, const BlockScaledBackwardMaps& maps,
                              BackwardMemory& smem)
        : p_(p), maps_(maps), smem_(smem) {
        rows_.parity = operands_.parity = 1;  // all stages are empty
    }

    __device__ void run() {
        for_each_entry_to_load(smem_, [&](const BackwardEntry& e) {
            switch (e.kind) {
                case plan::TaskKind::Replay:
                    load_replay(e);
                    break;
                case plan::TaskKind::DownDgrad:
                    load_down_dgrad(e);
                    break;
                case plan::TaskKind::GateUpDgrad:
                    load_gate_up_dgrad(e);
                    break;
                default:
                    load_wgrad(e);
            }
        });
    }

  private:
    static constexpr int kBox = 64;

    // The next free stage of rows, that `bytes` are going to fill.
    __device__ uint8_t* begin_rows(int32_t bytes) {
        arch::barrier_wait(&smem_.empty[rows_.index], rows_.parity);
        arch::barrier_arrive_expect(&smem_.full[rows_.index], bytes);
        return smem_.stage[rows_.index];
    }
    // Boxes of 64 x 64, `next` of them one behind the other along the rows or along the columns.
    __device__ void load_boxes_of_rows(uint8_t* to, const CUtensorMap* map, int32_t col,
                                       int32_t row) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            arch::load_tile(to + i * kBoxBytes, map, col, row + i * kBox, 0,
                            &smem_.full[rows_.index]);
        }
    }
    template <int kCount>
    __device__ void load_boxes_of_columns(uint8_t* to, const CUtensorMap* map, int32_t col,
                                          int32_t row) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            arch::load_tile(to + i * kBoxBytes, map, col + i * kBox, row, 0,
                            &smem_.full[rows_.index]);
        }
    }

    // 128 rows of B from a row on, a multiple of 128.
    struct WeightRows {
        const BlockScaledWeight* weight;
        int32_t row;
    };
    // One block of k: the weights', k_tiles of them in a row of B, and A's, 128 rows from `row` on.
    __device__ void load_block(int32_t k, int32_t k_tiles, const WeightRows& first,
                               const WeightRows& second, int32_t expert, const CUtensorMap* a,
                               int32_t row) {
        arch::Barrier* const full = &smem_.operand_full[operands_.index];
        arch::barrier_wait(&smem_.operand_empty[operands_.index], operands_.parity);
        arch::barrier_arrive_expect(full, kBBytes + 2 * kScaleTileBytes);
        uint8_t* const b = smem_.operand(operands_.index) + kABytes;
        uint8_t* const scales = smem_.scales[operands_.index] + kScaleTileBytes;
        const auto load_half = [&](int i, const WeightRows& rows) {
            arch::load_tile(b + i * (kBBytes / 2), &rows.weight->elements, k * kOperandK, rows.row,
                            expert, full);
            const auto tile = static_cast<int32_t>(first_scale_tile(rows.row, k_tiles));
            arch::load_tile(scales + i * kScaleTileBytes, &rows.weight->scales, 0, tile + k, expert,
                            full);
        };
        load_half(0, first);
        load_half(1, second);
        operands_.advance();
        uint8_t* const to = begin_rows(2 * kABytes);
        load_boxes_of_rows(to, a, k * kOperandK, row);
        load_boxes_of_rows(to + kABytes, a, k * kOperandK + kBox, row);
        rows_.advance();
    }

    // A: x rows; B: 128 rows of Wg, 128 rows of Wu.
    __device__ void load_replay(const BackwardEntry& e) {
        const int32_t row = e.part * plan::kGateUpCols;
        const int32_t blocks = operand_blocks(e.kind, e.k_blocks);
        for (int32_t k = 0; k < blocks; ++k) {
            load_block(k, blocks, {&maps_.gate8, row}, {&maps_.up8, row}, e.expert, &maps_.ring.x,
                       e.ring_row);
        }
    }

    // A: d_y rows; B: rows of Wd transposed. Behind them gate and up.
    __device__ void load_down_dgrad(const BackwardEntry& e) {
        const RowPlace d_y = row_place(p_.pass, e, plan::RowBuffer::DY, e.begin);
        const CUtensorMap* const a = d_y.kept ? &maps_.kept.d_y : &maps_.ring.d_y;
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const RowMaps& saved = at.kept ? maps_.kept : maps_.ring;
        const int32_t col = e.part * plan::kDownDgradCols;
        const int32_t blocks = operand_blocks(e.kind, e.k_blocks);
        const int32_t gate_up = gate_up_blocks(p_.pass.problem.intermediate, e.part);
        const BlockScaledWeight* const down = &maps_.down_t8;
        for (int32_t k = 0; k < blocks; ++k) {
            load_block(k, blocks, {down, col}, {down, col + 128}, e.expert, a, d_y.row);
            // Every CTA wants gate and up at about the same time, from device memory.
            if (k >= gate_up) continue;
            for (int i = 0; i < 2; ++i) {
                const int32_t c = col + k * kGateUpBlockCols;
                arch::prefetch_tile(&saved.gate, c, at.row + i * kBox, 0);
                arch::prefetch_tile(&saved.up, c, at.row + i * kBox, 0);
            }
        }
        for (int32_t block = 0; block < gate_up; ++block) {
            constexpr int32_t kSavedBoxBytes = 64 * 64;
            uint8_t* const to = begin_rows(4 * kSavedBoxBytes);
            const int32_t c = col + block * kGateUpBlockCols;
            load_boxes_of_rows(to, &saved.gate, c, at.row);
            load_boxes_of_rows(to + kUpBytes, &saved.up, c, at.row);
            rows_.advance();
        }
    }

    // A: d_gate rows, then d_up rows; B: rows of Wg transposed, then of Wu.
    __device__ void load_gate_up_dgrad(const BackwardEntry& e) {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::Operands, e.begin);
        const RowMaps& rows = at.kept ? maps_.kept : maps_.ring;
        const int32_t row = e.part * plan::kOutCols;
        const int32_t blocks = operand_blocks(e.kind, e.k_blocks) / 2;
        for (int32_t block = 0; block < 2 * blocks; ++block) {
            const bool is_up = block >= blocks;
            const BlockScaledWeight* const weight = is_up ? &maps_.up_t8 : &maps_.gate_t8;
            load_block(is_up ? block - blocks : block, blocks, {weight, row}, {weight, row + 128},
                       e.expert, is_up ? &rows.d_up : &rows.d_gate, at.row);
        }
    }

    // A: 128 columns of d_gate, d_up or d_y, B: 256 of x or w * hidden, of the slots of the piece:
    // those that the context may hold, then the others. Then an empty stage for FP32 sums on their
    // way out.
    __device__ void load_wgrad(const BackwardEntry& e) {
        const int32_t below = blocks_in_context(p_, e);
        SlotOperands o = slot_operands(p_, e, maps_, 0);
        for (int32_t k = 0; k < e.k_blocks; ++k) {
            if (k == below && k > 0) o = slot_operands(p_, e, maps_, k);
            if (k % 2 == 0) {
                arch::barrier_wait(&smem_.operand_empty[operands_.index], operands_.parity);
                arch::barrier_arrive(&smem_.operand_full[operands_.index]);
                operands_.advance();
            }
            uint8_t* const to = begin_rows(kStageBytes);
            load_boxes_of_columns<kBoxesOfA>(to, o.a, e.at.row, o.a_row);
            load_boxes_of_columns<kBoxesOfB>(to + kABytes, o.b, e.at.col, o.b_row);
            rows_.advance();
            o.a_row += kBox;
            o.b_row += kBox;
        }
        if (e.by_stage) {
            begin_rows(0);
            rows_.advance();
        }
    }

    const BackwardParams& p_;
    const BlockScaledBackwardMaps& maps_;
    BackwardMemory& smem_;
    arch::RingState<kRowStages> rows_;
    arch::RingState<kOperandStages> operands_;
};

}  // namespace mok::kernels::block_scaled
