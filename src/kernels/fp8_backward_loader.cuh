#pragma once

#include "arch/copy.cuh"
#include "kernels/backward_entries.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/fp8_units.cuh"

// The loader role of a backward in Fp8Block: one thread of every CTA streams each task's operands
// into shared memory, stage by stage. A block of k is 128 elements: A is a box of 128 rows, B two,
// and their scales come with them. Units and Replay's x are BF16, boxes of 64 rows x 64 columns.
namespace mok::kernels {

// The exchange's own buffer ends with scales of the stages.
__device__ inline ExchangeRoom own_room_of(const Fp8BackwardParams& /*p*/, SharedMemory& smem) {
    ExchangeRoom room = own_room(smem);
    room.bytes = fp8::kRowsBytes;
    return room;
}

class Fp8BackwardLoader {
  public:
    __device__ Fp8BackwardLoader(const Fp8BackwardParams& p, const Fp8BackwardMaps& maps,
                                 Fp8BackwardSharedMemory& smem)
        : p_(p), maps_(maps), smem_(smem) {
        stage_.parity = 1;  // all stages are empty
    }

    __device__ void run() {
        for_each_entry_to_load(smem_, [&](const BackwardEntry& e) {
            switch (e.kind) {
                case kUnitTask:
                    load_unit(e);
                    break;
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
    static constexpr int kBox = 64, kBoxBytes = kBox * kBox * 2;

    __device__ arch::Barrier* full() { return &smem_.full[stage_.index]; }
    // The next free stage, that `bytes` are going to fill.
    __device__ uint8_t* begin_stage(int32_t bytes) {
        wait_for_stage();
        arch::barrier_arrive_expect(full(), bytes);
        return smem_.stage[stage_.index];
    }
    __device__ void wait_for_stage() {
        arch::barrier_wait(&smem_.empty[stage_.index], stage_.parity);
    }
    // BF16, 128 rows x 64 columns.
    __device__ void load_columns(uint8_t* to, const CUtensorMap& map, int32_t col, int32_t row) {
        for (int i = 0; i < 2; ++i) {
            arch::load_tile(to + i * kBoxBytes, &map, col, row + i * kBox, 0, full());
        }
    }

    // ---- Units --------------------------------------------------------------------------------
    struct Source {
        const CUtensorMap* map;
        int32_t row;
    };
    __device__ Source source_of(const BackwardEntry& e) const {
        const Operand operand = static_cast<Operand>(e.piece);
        const plan::RowBuffer buffer = operand == Operand::DY  ? plan::RowBuffer::DY
                                       : operand == Operand::X ? plan::RowBuffer::X
                                                               : plan::RowBuffer::Operands;
        const RowPlace at = row_place(p_.pass, e, buffer, e.begin);
        const RowMaps& rows = at.kept ? maps_.kept : maps_.ring;
        switch (operand) {
            case Operand::DY:
                return {&rows.d_y, at.row};
            case Operand::DGate:
                return {&rows.d_gate, at.row};
            case Operand::DUp:
                return {&rows.d_up, at.row};
            case Operand::WHidden:
                return {&rows.w_hidden, at.row};
            default:
                return {&rows.x, at.row};
        }
    }
    __device__ void load_unit(const BackwardEntry& e) {
        const Source from = source_of(e);
        for (int32_t i = 0; i < e.k_blocks; ++i) {
            uint8_t* to = begin_stage(2 * kABytes);
            const int32_t col = 128 * (e.part + i);
            load_columns(to, *from.map, col, from.row);
            load_columns(to + kABytes, *from.map, col + kBox, from.row);
            stage_.advance();
        }
    }

    // ---- Products with weights ----------------------------------------------------------------
    // A: x rows in BF16, two stages for a block of k; B, in the first of them: 128 rows of Wg and
    // of Wu.
    __device__ void load_replay(const BackwardEntry& e) {
        const int32_t weights = e.part * plan::kGateUpCols;
        for (int32_t k = 0; k < e.k_blocks; ++k) {
            const bool has_weights = k % 2 == 0;
            uint8_t* a = begin_stage(has_weights ? kStageBytes : kABytes);
            load_columns(a, maps_.ring.x, k * kBox, e.ring_row);
            if (has_weights) {
                uint8_t* b = a + kABytes;
                arch::load_tile(b, &maps_.gate8, k * kBox, weights, e.expert, full());
                arch::load_tile(b + kBBytes / 2, &maps_.up8, k * kBox, weights, e.expert, full());
            }
            stage_.advance();
        }
    }

    // 128 rows by some of the 128-wide blocks of a matrix of rows, and 256 features of the weights.
    struct Product {
        const CUtensorMap *a, *b;
        const float* row_scales;  // [k_blocks][128]
        const float* weights;     // of the first feature's block; those of the next block of k
        int32_t stride;           // follow so many further on
        int32_t second;           // where the second features' block is from there
        int32_t row, feature, expert, k_blocks;
    };
    __device__ Product product(const CUtensorMap& a, const CUtensorMap& b, const Fp8Rows& rows,
                               const BackwardEntry& e, int32_t k_blocks) const {
        Product o;
        o.a = &a;
        o.b = &b;
        o.row_scales = rows.scales + int64_t{e.ring_row} * k_blocks;
        o.row = e.ring_row;
        o.feature = e.part * plan::kOutCols;
        o.expert = e.expert;
        o.k_blocks = k_blocks;
        return o;
    }
    // The scales of an expert's weights [k_blocks][blocks of features].
    __device__ static void set_weights(Product& o, const float* scales, int32_t feature_blocks) {
        const int32_t first = o.feature / 128;
        o.weights = scales + int64_t{o.expert} * o.k_blocks * feature_blocks + first;
        o.stride = feature_blocks;
        o.second = first + 1 < feature_blocks ? 1 : 0;
    }
    template <class Behind>
    __device__ void load_product(const Product& o, Behind&& behind) {
        // The weights' scales are read a block before they are written.
        float first = __ldg(o.weights), second = __ldg(o.weights + o.second);
        const float* next = o.weights;
        for (int32_t k = 0; k < o.k_blocks; ++k) {
            wait_for_stage();
            float* const scales = smem_.weight_scales(stage_.index);
            scales[0] = first;
            scales[1] = second;
            if (k + 1 < o.k_blocks) {
                next += o.stride;
                first = __ldg(next);
                second = __ldg(next + o.second);
            }
            uint8_t* a = begin_stage(kStageBytes + fp8::kScaleBytes);
            arch::load_tile(a, o.a, 128 * k, o.row, 0, full());
            arch::load_bytes(smem_.stage_scales[stage_.index], o.row_scales + k * plan::kTileRows,
                             fp8::kScaleBytes, full());
            uint8_t* b = a + kABytes;
            arch::load_tile(b, o.b, 128 * k, o.feature, o.expert, full());
            arch::load_tile(b + kBBytes / 2, o.b, 128 * k, o.feature + 128, o.expert, full());
            stage_.advance();
            behind(k);
        }
    }

    // A: d_y; B: Wd transposed. Behind them gate and up, 64 columns a stage.
    __device__ void load_down_dgrad(const BackwardEntry& e) {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const RowMaps& rows = at.kept ? maps_.kept : maps_.ring;
        const int32_t width = p_.pass.problem.intermediate;
        const int32_t col = e.part * plan::kDownDgradCols, gate_up = gate_up_blocks(width, e.part);
        Product o = product(maps_.d_y8, maps_.down_t8, p_.d_y, e, e.k_blocks);
        set_weights(o, p_.down_weight_scales, plan::ceil_div(width, 128));
        load_product(o, [&](int32_t k) {
            // Every CTA wants gate and up at about the same time, from device memory.
            if (k >= gate_up) return;
            for (int i = 0; i < 2; ++i) {
                const int32_t c = col + k * kGateUpBlockCols;
                arch::prefetch_tile(&rows.gate, c, at.row + i * kBox, 0);
                arch::prefetch_tile(&rows.up, c, at.row + i * kBox, 0);
            }
        });
        const Fp8GateUp& saved = at.kept ? p_.kept_saved : p_.ring_saved;
        const int32_t saved_blocks = plan::ceil_div(width, 128);
        for (int32_t block = 0; block < gate_up; ++block) {
            uint8_t* a = begin_stage(4 * Fp8BackwardMaps::kSavedBoxBytes + 2 * fp8::kScaleBytes);
            const int32_t c = col + block * kGateUpBlockCols;
            const int64_t scales = int64_t{at.row} * saved_blocks + c / 128 * plan::kTileRows;
            float* const to = smem_.stage_scales[stage_.index];
            arch::load_bytes(to, saved.gate.scales + scales, fp8::kScaleBytes, full());
            arch::load_bytes(to + plan::kTileRows, saved.up.scales + scales, fp8::kScaleBytes,
                             full());
            load_columns(a, rows.gate, c, at.row);
            load_columns(a + kUpBytes, rows.up, c, at.row);
            stage_.advance();
        }
    }

    // A: d_gate, then d_up; B: Wg transposed, then Wu.
    __device__ void load_gate_up_dgrad(const BackwardEntry& e) {
        const int32_t feature_blocks = plan::ceil_div(p_.pass.problem.hidden, 128);
        const auto nothing = [](int32_t) {};
        Product gate = product(maps_.d_gate8, maps_.gate_t8, p_.d_gate, e, e.k_blocks / 2);
        set_weights(gate, p_.gate_weight_scales, feature_blocks);
        load_product(gate, nothing);
        Product up = product(maps_.d_up8, maps_.up_t8, p_.d_up, e, e.k_blocks / 2);
        set_weights(up, p_.up_weight_scales, feature_blocks);
        load_product(up, nothing);
    }

    // ---- Weight gradients ---------------------------------------------------------------------
    // A: 128 columns of d_gate, d_up or d_y, B: 256 of x or w * hidden, by slots. Before them,
    // where the bias gradient is asked for, A's columns in BF16, 64 slots a stage; behind them an
    // empty stage for FP32 sums on their way out.
    __device__ void load_wgrad(const BackwardEntry& e) {
        if (e.has_bias) load_bias_rows(e);
        const plan::Problem& problem = p_.pass.problem;
        const bool down = e.kind == plan::TaskKind::DownWgrad;
        const bool gate = e.kind == plan::TaskKind::GateWgrad;
        const CUtensorMap* a = down   ? &maps_.d_y_slots
                               : gate ? &maps_.d_gate_slots
                                      : &maps_.d_up_slots;
        const CUtensorMap* b = down ? &maps_.w_hidden_slots : &maps_.x_slots;
        const Fp8Rows& of_a = down ? p_.d_y_slots : gate ? p_.d_gate_slots : p_.d_up_slots;
        const int32_t a_cols = plan::round_up(down ? problem.hidden : problem.intermediate, 128);
        const int32_t cols = plan::round_up(down ? problem.intermediate : problem.hidden, 128);
        const int32_t first_tile = e.ring_row / plan::kTileRows;
        const float* a_scales = of_a.scales + int64_t{first_tile} * a_cols + e.at.row;
        const float* scales =
            (down ? p_.w_hidden_slots : p_.x_slots).scales + int64_t{first_tile} * cols + e.at.col;
        const int32_t scale_bytes = 4 * min(plan::kWgradCols, cols - e.at.col);
        for (int32_t k = 0; k < e.k_blocks; ++k) {
            uint8_t* to = begin_stage(kStageBytes + fp8::kScaleBytes + scale_bytes);
            arch::load_tile(to, a, 0, e.at.row, first_tile + k, full());
            arch::load_bytes(smem_.column_scales(stage_.index), a_scales + int64_t{k} * a_cols,
                             fp8::kScaleBytes, full());
            for (int i = 0; i < 2; ++i) {
                arch::load_tile(to + kABytes + i * (kBBytes / 2), b, 0, e.at.col + 128 * i,
                                first_tile + k, full());
            }
            arch::load_bytes(smem_.stage_scales[stage_.index], scales + int64_t{k} * cols,
                             scale_bytes, full());
            stage_.advance();
        }
        if (e.by_stage) {
            begin_stage(0);
            stage_.advance();
        }
    }
    __device__ void load_bias_rows(const BackwardEntry& e) {
        const bool down = e.kind == plan::TaskKind::DownWgrad;
        const bool gate = e.kind == plan::TaskKind::GateWgrad;
        const plan::RowBuffer buffer = down ? plan::RowBuffer::DY : plan::RowBuffer::Operands;
        for (int32_t k = 0; k * kBox < e.num_rows; ++k) {
            const RowPlace at = row_place(p_.pass, e, buffer, e.begin + k * kBox);
            const RowMaps& rows = at.kept ? maps_.kept : maps_.ring;
            const CUtensorMap* map = down ? &rows.d_y : gate ? &rows.d_gate : &rows.d_up;
            uint8_t* to = begin_stage(kABytes);
            for (int i = 0; i < 2; ++i) {
                arch::load_tile(to + i * kBoxBytes, map, e.at.row + i * kBox, at.row, 0, full());
            }
            stage_.advance();
        }
    }

    const Fp8BackwardParams& p_;
    const Fp8BackwardMaps& maps_;
    Fp8BackwardSharedMemory& smem_;
    arch::RingState<kStages> stage_;
};

}  // namespace mok::kernels
