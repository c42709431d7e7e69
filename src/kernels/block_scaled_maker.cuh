#pragma once

#include "arch/block_scale.cuh"
#include "kernels/block_scaled_backward_layout.cuh"
#include "kernels/block_scaled_words.cuh"

// The maker role of the MXFP8 backward: a warpgroup makes the operands that come as BF16, a block
// of 128 of k at a time, and its first thread issues each block's products while the next is made.
// Blocks of 32 along a row of A or, of a weight gradient, along the slots of a column of either
// operand become E4M3 and a scale, as on the CPU.
namespace mok::kernels::block_scaled {

class Maker {
  public:
    __device__ Maker(const BackwardParams& p, BackwardMemory& smem)
        : p_(p), smem_(smem), tensor_(smem.blackwell.tensor), thread_(threadIdx.x % kMakers) {
        sums_.parity = 1;  // the accumulator is empty
    }

    // The makers call it together.
    __device__ void run() {
        arch::RingState<kEntries> task;
        while (true) {
            arch::barrier_wait(&smem_.entry_full[task.index], task.parity);
            const BackwardEntry& e = smem_.entries[task.index];
            const bool more = e.more;
            const Work work = work_of(e);
            arch::barrier_arrive(&smem_.entry_empty[task.index]);
            task.advance();
            if (!more) return;
            if (work.row_stages > 0) multiply(work);
            if (work.other_stages > 0) pass(work.other_stages);
        }
    }

  private:
    static constexpr int kBarrierId = 3 + kConsumers;  // behind those of the engines

    struct Work {
        int32_t row_stages;    // of the products
        int32_t other_stages;  // their successors in the ring, that consumers alone use
        bool of_slots;         // a weight gradient: two stages an operand
        bool continues;        // the sums go on from what the consumers put there
        bool read_rows;        // the consumers read the products' stages too
    };
    __device__ Work work_of(const BackwardEntry& e) const {
        Work w{row_blocks(e.kind, e.k_blocks), 0, plan::is_wgrad(e.kind), false, false};
        if (e.kind == plan::TaskKind::DownDgrad) {
            w.other_stages = gate_up_blocks(p_.pass.problem.intermediate, e.part);
        } else if (w.of_slots) {
            w.other_stages = e.by_stage ? 1 : 0;
            w.continues = wgrad_continues(e, wgrad_target(p_, e));
            w.read_rows = e.has_bias;
        }
        return w;
    }

    __device__ bool issues() const { return thread_ == 0; }

    __device__ void multiply(const Work& w) {
        bool first = true;
        for (int32_t k = 0; k < w.row_stages;) {
            // The weights have come, and products of this stage's last use are done.
            arch::barrier_wait(&smem_.operand_full[operands_.index], operands_.parity);
            make_half(w, 0);
            ++k;
            int steps = kOperandK / 32;
            if (w.of_slots) {
                if (k < w.row_stages) {
                    make_half(w, 1);
                    ++k;
                } else {
                    steps /= 2;
                }
            }
            if (issues()) {
                if (first) await_accumulator(w.continues);
                issue(steps, first && !w.continues);
            }
            __syncwarp();
            first = false;
            operands_.advance();
        }
        if (issues()) arch::umma_commit(&tensor_.full[0]);
        __syncwarp();
        sums_.advance();
    }

    // What one stage of rows is made into; then the stage is free.
    __device__ void make_half(const Work& w, int half) {
        arch::barrier_wait(&smem_.full[rows_.index], rows_.parity);
        const uint32_t from = arch::shared_address(smem_.stage[rows_.index]);
        const uint32_t to = arch::shared_address(smem_.operand(operands_.index));
        const uint32_t scales = arch::shared_address(smem_.scales[operands_.index]);
        if (w.of_slots) {
            make_columns(SharedWords{}, thread_, 2 * half, from, to, scales);
        } else {
            make_row(SharedWords{}, thread_, from, to, scales);
        }
        arch::fence_shared_to_copies();
        arch::group_sync<kMakers>(kBarrierId);
        if (issues()) {
            arch::barrier_arrive_many(&smem_.empty[rows_.index], w.read_rows ? 1 : kStageReaders);
        }
        __syncwarp();
        rows_.advance();
    }

    __device__ void await_accumulator(bool continues) {
        arch::barrier_wait(&tensor_.empty[0], sums_.parity);
        if (continues) {
            arch::barrier_wait(&tensor_.begun, begun_parity_);
            begun_parity_ ^= 1;
        }
    }
    // The first `steps` times 32 elements of k. The scales have columns of their own for every
    // stage, which its last products have read.
    __device__ void issue(int steps, bool from_zero) const {
        arch::umma_fence_after();
        const uint32_t scales = arch::shared_address(smem_.scales[operands_.index]);
        const uint32_t a_scales = arch::tensor_address(
            tensor_.address, 0, kOperandScalesAt + operands_.index * kOperandScaleColumns);
        const uint32_t b_scales = a_scales + arch::kScaleTileColumns;
#pragma unroll
        for (int i = 0; i < kScaleTiles; ++i) {
            arch::copy_scales(a_scales + i * arch::kScaleTileColumns,
                              arch::scale_tile_descriptor(scales + i * kScaleTileBytes));
        }
        const uint32_t at = arch::shared_address(smem_.operand(operands_.index));
        const uint64_t a = arch::umma_operand(at, arch::Major::K);
        const uint64_t b = arch::umma_operand(at + kABytes, arch::Major::K);
#pragma unroll
        for (int step = 0; step < kOperandK / 32; ++step) {
            if (step >= steps) break;
            arch::umma_mxfp8_m128n256k32(
                arch::tensor_address(tensor_.address, 0, 0), a + step * arch::kUmmaByteStep,
                b + step * arch::kUmmaByteStep,
                arch::umma_mxfp8_instruction(plan::kTileRows, plan::kOutCols, step), a_scales,
                b_scales, !from_zero || step != 0);
        }
        arch::umma_commit(&smem_.operand_empty[operands_.index]);
    }

    // Stages that consumers alone use. Nobody goes on before they have come: who is a round of the
    // ring ahead would take a barrier's phase for the next one's.
    __device__ void pass(int32_t stages) {
        for (int32_t i = 0; i < stages; ++i) {
            if (issues()) {
                arch::barrier_wait(&smem_.full[rows_.index], rows_.parity);
                arch::barrier_arrive(&smem_.empty[rows_.index]);
            }
            rows_.advance();
        }
        __syncwarp();
        arch::group_sync<kMakers>(kBarrierId);
    }

    const BackwardParams& p_;
    BackwardMemory& smem_;
    TensorMemory& tensor_;
    int thread_;
    arch::RingState<kRowStages> rows_;
    arch::RingState<kOperandStages> operands_;
    arch::RingState<kSums> sums_;
    uint32_t begun_parity_ = 0;
};

}  // namespace mok::kernels::block_scaled
