#pragma once

#include "arch/copy.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_pair_layout.cuh"

// The loader role of a backward by pairs: one thread of each CTA brings its 128 rows of A and its
// half of B's 256 to every stage of products, both as in BackwardLoader, and its consumers' stages.
// Of a dry entry it brings the half of B alone.
namespace mok::kernels {

class BackwardPairLoader {
  public:
    __device__ BackwardPairLoader(const BackwardParams& p, const BackwardMaps& routed,
                                  const BackwardMaps& shared, BackwardPairMemory& smem,
                                  const arch::Cluster& cluster)
        : p_(p),
          routed_(routed),
          shared_(shared),
          smem_(smem),
          rank_(static_cast<int32_t>(cluster.rank)),
          full_(arch::cluster_address(smem.pair_full, 0)) {
        products_.parity = own_.parity = 1;  // all stages are empty
    }

    __device__ void run() {
        for_each_entry_to_load(smem_, [&](BackwardEntry& e) {
            const BackwardMaps& maps = e.shared ? shared_ : routed_;
            is_dry_ = is_dry(e);
            if (is_dry_) e.num_rows += kDryRows;
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
    static_assert(kABytes == 2 * kBoxBytes && kBBytes / 2 == 2 * kBoxBytes);

    // Two boxes of 64 x 64 of a matrix, from (col, row) on: 128 rows or 128 columns.
    struct Boxes {
        const CUtensorMap* map;
        int32_t col, row, index;
        bool along_rows;
    };
    // The next stage of products; a dry entry has no A.
    __device__ void load_stage(const Boxes& a, const Boxes& b) {
        const uint32_t full = full_ + products_.index * sizeof(arch::Barrier);
        arch::barrier_wait(&smem_.pair_empty[products_.index], products_.parity);
        arch::pair_arrive_expect(full, (is_dry_ ? 0 : kABytes) + kBBytes / 2);
        uint8_t* const at = smem_.pair_stage(products_.index);
        if (!is_dry_) load_boxes(at, a, full);
        load_boxes(at + kABytes, b, full);
        products_.advance();
    }
    __device__ static void load_boxes(uint8_t* to, const Boxes& b, uint32_t full) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            arch::load_tile_of_pair(to + i * kBoxBytes, b.map,
                                    b.along_rows ? b.col : b.col + i * kBox,
                                    b.along_rows ? b.row + i * kBox : b.row, b.index, full);
        }
    }
    // The next free stage of the consumers, that `bytes` are going to fill.
    __device__ uint8_t* begin_own(int32_t bytes) {
        arch::barrier_wait(&smem_.empty[own_.index], own_.parity);
        arch::barrier_arrive_expect(&smem_.full[own_.index], bytes);
        return smem_.stage[own_.index];
    }
    __device__ void load_own_box(uint8_t* to, const CUtensorMap& map, int32_t col, int32_t row) {
        arch::load_tile(to, &map, col, row, 0, &smem_.full[own_.index]);
    }

    // B: 128 rows of Wg in the first CTA, of Wu in the second.
    __device__ void load_replay(const BackwardEntry& e) {
        const CUtensorMap* const b = rank_ == 0 ? &routed_.gate : &routed_.up;
        const int32_t weights = e.part * plan::kGateUpCols;
        for (int32_t k = 0; k < e.k_blocks; ++k) {
            load_stage({&routed_.ring.x, k * kBox, e.ring_row, 0, true},
                       {b, k * kBox, weights, e.expert, true});
        }
    }

    // B: 128 columns of Wd. Behind the products gate and up.
    __device__ void load_down_dgrad(const BackwardEntry& e, const BackwardMaps& maps) {
        const RowPlace d_y = row_place(p_.pass, e, plan::RowBuffer::DY, e.begin);
        const CUtensorMap* const a = d_y.kept ? &maps.kept.d_y : &maps.ring.d_y;
        const int32_t col = e.part * plan::kDownDgradCols;
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const RowMaps& rows = at.kept ? maps.kept : maps.ring;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        const int32_t gate_up = is_dry_ ? 0 : gate_up_blocks(width, e.part);
        for (int32_t k = 0; k < e.k_blocks; ++k) {
            load_stage({a, k * kBox, d_y.row, 0, true},
                       {&maps.down, half_of(col), k * kBox, e.expert, false});
            // Every CTA wants gate and up at about the same time, from device memory.
            if (k >= gate_up) continue;
            for (int i = 0; i < 2; ++i) {
                const int32_t c = col + k * kGateUpBlockCols;
                arch::prefetch_tile(&rows.gate, c, at.row + i * kBox, 0);
                arch::prefetch_tile(&rows.up, c, at.row + i * kBox, 0);
            }
        }
        for (int32_t block = 0; block < gate_up; ++block) {
            uint8_t* const to = begin_own(4 * BackwardMaps::kSavedBoxBytes);
            for (int i = 0; i < 2; ++i) {
                const int32_t c = col + block * kGateUpBlockCols;
                load_own_box(to + i * kBoxBytes, rows.gate, c, at.row + i * kBox);
                load_own_box(to + kUpBytes + i * kBoxBytes, rows.up, c, at.row + i * kBox);
            }
            own_.advance();
        }
    }

    // B: 128 columns of Wg, then of Wu.
    __device__ void load_gate_up_dgrad(const BackwardEntry& e, const BackwardMaps& maps) {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::Operands, e.begin);
        const RowMaps& rows = at.kept ? maps.kept : maps.ring;
        const int32_t col = half_of(e.part * plan::kOutCols), blocks = e.k_blocks / 2;
        for (int32_t block = 0; block < 2 * blocks; ++block) {
            const bool is_up = block >= blocks;
            const int32_t k = (is_up ? block - blocks : block) * kBox;
            load_stage({is_up ? &rows.d_up : &rows.d_gate, k, at.row, 0, true},
                       {is_up ? &maps.up : &maps.gate, col, k, e.expert, false});
        }
    }

    // B: 128 columns of x or w * hidden. Where a bias gradient is summed each block of A comes to
    // the consumers too; behind the products an empty stage for FP32 sums on their way out.
    __device__ void load_wgrad(const BackwardEntry& e, const BackwardMaps& maps) {
        const int32_t below = blocks_in_context(p_, e), b_col = half_of(e.at.col);
        SlotOperands o = slot_operands(p_, e, maps, 0);
        for (int32_t k = 0; k < e.k_blocks; ++k) {
            if (k == below && k > 0) o = slot_operands(p_, e, maps, k);
            load_stage({o.a, e.at.row, o.a_row, 0, false}, {o.b, b_col, o.b_row, 0, false});
            if (e.has_bias && !is_dry_) {
                uint8_t* const to = begin_own(kABytes);
                for (int i = 0; i < 2; ++i) {
                    load_own_box(to + i * kBoxBytes, *o.a, e.at.row + i * kBox, o.a_row);
                }
                own_.advance();
            }
            o.a_row += kBox;
            o.b_row += kBox;
        }
        if (e.by_stage && !is_dry_) {
            begin_own(0);
            own_.advance();
        }
    }
    // This CTA's 128 of B's 256 columns from `col` on.
    __device__ int32_t half_of(int32_t col) const {
        return col + rank_ * (plan::kOutCols / 2);
    }

    const BackwardParams& p_;
    const BackwardMaps& routed_;
    const BackwardMaps& shared_;
    BackwardPairMemory& smem_;
    int32_t rank_;
    uint32_t full_;        // the first CTA's pair_full[0]
    bool is_dry_ = false;  // the entry whose blocks are being loaded
    arch::RingState<kProductStages> products_;
    arch::RingState<kConsumerStages> own_;
};

}  // namespace mok::kernels
