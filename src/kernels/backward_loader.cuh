#pragma once

#include "arch/copy.cuh"
#include "kernels/backward_entries.cuh"
#include "kernels/backward_layout.cuh"

// The loader role of a backward: one thread of every CTA streams each task's operands into shared
// memory, stage by stage, in boxes of 64 rows x 64 columns: two of A, four of B.
namespace mok::kernels {

// Where the operands of a weight gradient lie whose blocks of 64 slots begin with `first`; all of
// them on one side of the context's end.
struct SlotOperands {
    const CUtensorMap *a, *b;  // d_gate, d_up or d_y; x or w * hidden
    int32_t a_row, b_row;
};
// A piece's blocks below the context's end.
__device__ inline int32_t blocks_in_context(const BackwardParams& p, const BackwardEntry& e) {
    if (e.shared) return 0;
    return min(max((p.pass.problem.context_rows - e.begin) / kTileK, 0), e.k_blocks);
}
__device__ inline SlotOperands slot_operands(const BackwardParams& p, const BackwardEntry& e,
                                             const BackwardMaps& maps, int32_t first) {
    constexpr int32_t kOutside = 1 << 30;  // a row of no buffer: zeros
    const bool down = e.kind == plan::TaskKind::DownWgrad;
    const bool gate = e.kind == plan::TaskKind::GateWgrad;
    const int32_t slot = e.begin + first * kTileK;
    const RowPlace made = row_place(p.pass, e, plan::RowBuffer::Operands, slot);
    const RowPlace pulled =
        row_place(p.pass, e, down ? plan::RowBuffer::DY : plan::RowBuffer::X, slot);
    const RowMaps& made_maps = made.kept ? maps.kept : maps.ring;
    const RowMaps& pulled_maps = pulled.kept ? maps.kept : maps.ring;
    SlotOperands o;
    o.a = down ? &pulled_maps.d_y : (gate ? &made_maps.d_gate : &made_maps.d_up);
    o.b = down ? &made_maps.w_hidden : &pulled_maps.x;
    o.a_row = down ? pulled.row : made.row;
    o.b_row = down ? made.row : pulled.row;
    if (e.num_rows == 0) o.a_row = o.b_row = kOutside;
    return o;
}

// Maps: BackwardMaps, or a kind of them.
template <class Maps>
class BackwardLoader {
  public:
    __device__ BackwardLoader(const BackwardParams& p, const Maps& routed,
                              const BackwardMaps& shared, BackwardSharedMemory& smem)
        : p_(p), routed_(routed), shared_(shared), smem_(smem) {
        stage_.parity = 1;  // all stages are empty
    }

    __device__ void run() {
        for_each_entry_to_load(smem_, [&](const BackwardEntry& e) {
            const BackwardMaps& maps = e.shared ? shared_ : routed_;
            switch (e.kind) {
                case plan::TaskKind::Replay:
                    load_replay(e);
                    break;
                case plan::TaskKind::DownDgrad:
                    load_down_dgrad(e, maps);
                    break;
                case plan::TaskKind::GateUpDgrad:
                    load_gate_up_dgrad(e, maps);
                    break;
                default:
                    load_wgrad(e, maps);
            }
        });
    }

  private:
    static constexpr int kBox = 64, kBoxBytes = kBox * kBox * 2;

    // The next free stage, that `bytes` are going to fill.
    __device__ uint8_t* begin_stage(int32_t bytes) {
        arch::barrier_wait(&smem_.empty[stage_.index], stage_.parity);
        arch::barrier_arrive_expect(&smem_.full[stage_.index], bytes);
        return smem_.stage[stage_.index];
    }
    // Box i of an operand, whose boxes follow each other along the rows or along the columns.
    __device__ void load_row_box(uint8_t* to, int i, const CUtensorMap& map, int32_t col,
                                 int32_t row, int32_t index) {
        arch::load_tile(to + i * kBoxBytes, &map, col, row + i * kBox, index,
                        &smem_.full[stage_.index]);
    }
    __device__ void load_col_box(uint8_t* to, int i, const CUtensorMap& map, int32_t col,
                                 int32_t row, int32_t index) {
        arch::load_tile(to + i * kBoxBytes, &map, col + i * kBox, row, index,
                        &smem_.full[stage_.index]);
    }

    // A: x rows; B: 128 rows of Wg, 128 rows of Wu; all K-innermost.
    __device__ void load_replay(const BackwardEntry& e) {
        const CUtensorMap &gate = routed_.replayed_gate(), &up = routed_.replayed_up();
        const int32_t row = e.ring_row;
        const int32_t weights = e.part * plan::kGateUpCols, blocks = e.k_blocks;
        for (int32_t k = 0; k < blocks; ++k) {
            uint8_t* a = begin_stage(kStageBytes);
            uint8_t* b = a + kABytes;
            for (int i = 0; i < 2; ++i) load_row_box(a, i, routed_.ring.x, k * kBox, row, 0);
            for (int i = 0; i < 2; ++i) {
                load_row_box(b, i, gate, k * kBox, weights, e.expert);
                load_row_box(b + kBBytes / 2, i, up, k * kBox, weights, e.expert);
            }
            stage_.advance();
        }
    }

    // A: d_y rows, K-innermost; B: Wd as it lies, K-outermost. Behind them gate and up.
    __device__ void load_down_dgrad(const BackwardEntry& e, const BackwardMaps& maps) {
        const RowPlace d_y = row_place(p_.pass, e, plan::RowBuffer::DY, e.begin);
        const CUtensorMap& a_map = d_y.kept ? maps.kept.d_y : maps.ring.d_y;
        const int32_t col = e.part * plan::kDownDgradCols, blocks = e.k_blocks;
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const RowMaps& rows = at.kept ? maps.kept : maps.ring;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        const int32_t gate_up = gate_up_blocks(width, e.part);
        for (int32_t k = 0; k < blocks; ++k) {
            uint8_t* a = begin_stage(kStageBytes);
            for (int i = 0; i < 2; ++i) load_row_box(a, i, a_map, k * kBox, d_y.row, 0);
            for (int i = 0; i < 4; ++i) {
                load_col_box(a + kABytes, i, maps.down, col, k * kBox, e.expert);
            }
            stage_.advance();
            // Every CTA wants gate and up at about the same time, from device memory.
            if (k >= gate_up) continue;
            for (int i = 0; i < 2; ++i) {
                const int32_t c = col + k * kGateUpBlockCols;
                arch::prefetch_tile(&rows.gate, c, at.row + i * kBox, 0);
                arch::prefetch_tile(&rows.up, c, at.row + i * kBox, 0);
            }
        }
        for (int32_t block = 0; block < gate_up; ++block) {
            uint8_t* a = begin_stage(4 * Maps::kSavedBoxBytes);
            for (int i = 0; i < 2; ++i) {
                const int32_t c = col + block * kGateUpBlockCols;
                load_row_box(a, i, rows.gate, c, at.row, 0);
                load_row_box(a + kUpBytes, i, rows.up, c, at.row, 0);
            }
            stage_.advance();
        }
    }

    // A: d_gate rows, then d_up rows, K-innermost; B: Wg, then Wu, as they lie.
    __device__ void load_gate_up_dgrad(const BackwardEntry& e, const BackwardMaps& maps) {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::Operands, e.begin);
        const RowMaps& rows = at.kept ? maps.kept : maps.ring;
        const int32_t col = e.part * plan::kOutCols, blocks = e.k_blocks;
        for (int32_t block = 0; block < blocks; ++block) {
            const bool is_up = block >= blocks / 2;
            const int32_t k = (is_up ? block - blocks / 2 : block) * kBox;
            const CUtensorMap& a_map = is_up ? rows.d_up : rows.d_gate;
            const CUtensorMap& b_map = is_up ? maps.up : maps.gate;
            uint8_t* a = begin_stage(kStageBytes);
            for (int i = 0; i < 2; ++i) load_row_box(a, i, a_map, k, at.row, 0);
            for (int i = 0; i < 4; ++i) load_col_box(a + kABytes, i, b_map, col, k, e.expert);
            stage_.advance();
        }
    }

    // A: 128 columns of d_gate, d_up or d_y, B: 256 of x or w * hidden; both K-outermost, k being
    // the slots of the piece: those that the context may hold, then the others. A piece lies in one
    // macrobatch, so its ring rows follow each other too. Then an empty stage for FP32 sums on
    // their way out.
    __device__ void load_wgrad(const BackwardEntry& e, const BackwardMaps& maps) {
        const int32_t below = blocks_in_context(p_, e);
        if (below > 0) load_slots(e, maps, 0, below);
        if (below < e.k_blocks) load_slots(e, maps, below, e.k_blocks);
        if (e.by_stage) {
            begin_stage(0);
            stage_.advance();
        }
    }
    // Blocks [first, end) of a wgrad, on one side of the context's end.
    __device__ void load_slots(const BackwardEntry& e, const BackwardMaps& maps, int32_t first,
                               int32_t end) {
        SlotOperands o = slot_operands(p_, e, maps, first);
        const int32_t a_col = e.at.row, b_col = e.at.col;
        for (int32_t k = first; k < end; ++k) {
            uint8_t* a = begin_stage(kStageBytes);
#pragma unroll
            for (int i = 0; i < 2; ++i) load_col_box(a, i, *o.a, a_col, o.a_row, 0);
#pragma unroll
            for (int i = 0; i < 4; ++i) load_col_box(a + kABytes, i, *o.b, b_col, o.b_row, 0);
            stage_.advance();
            o.a_row += kBox;
            o.b_row += kBox;
        }
    }
    const BackwardParams& p_;
    const Maps& routed_;
    const BackwardMaps& shared_;
    BackwardSharedMemory& smem_;
    arch::RingState<kStages> stage_;
};

}  // namespace mok::kernels
