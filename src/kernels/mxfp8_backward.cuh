#pragma once

#include "kernels/mxfp8_rounding.cuh"
#include "kernels/mxfp8_saved_rows.cuh"

// What a backward in Mxfp8 does on Hopper otherwise than one in BF16: it rounds operands in shared
// memory to what Mxfp8 keeps of them before it multiplies, and saved gate and up are Mxfp8.
namespace mok::kernels {

// sum[64, 256] += all k blocks of a task, in order, as multiply_blocks. prepare(k, stage) is called
// for each when it has come, while the tensor core works on the one before; on return what this
// consumer multiplies of the stage is ready.
template <Major kA, Major kB, class Prepare, class Beside>
__device__ __forceinline__ void multiply_prepared(SharedMemory& smem,
                                                  arch::RingState<kStages>& stage, int consumer,
                                                  int32_t k_blocks, bool continues,
                                                  float (&sum)[128], Prepare&& prepare,
                                                  Beside&& beside) {
    const bool first = threadIdx.x % 128 == 0;
    int previous = 0;
    if (k_blocks > 0) {
        arch::barrier_wait(&smem.full[stage.index], stage.parity);
        prepare(0, stage.index);
    }
    for (int32_t k = 0; k < k_blocks; ++k) {
        const uint32_t at = arch::shared_address(smem.stage[stage.index]);
        const uint64_t a_at = arch::operand_descriptor<kA>(at + consumer * 64 * kTileK * 2);
        const uint64_t b_at = arch::operand_descriptor<kB>(at + kABytes);
        arch::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            arch::wgmma_m64n256k16<kA, kB>(sum, a_at + step * arch::kOperandStep<kA>,
                                           b_at + step * arch::kOperandStep<kB>,
                                           continues || (k | step) != 0);
        }
        arch::wgmma_commit();
        arch::wgmma_wait<1>();
        if (k > 0 && first) arch::barrier_arrive(&smem.empty[previous]);
        beside(k);
        previous = stage.index;
        stage.advance();
        if (k + 1 < k_blocks) {
            arch::barrier_wait(&smem.full[stage.index], stage.parity);
            prepare(k + 1, stage.index);
        }
    }
    arch::wgmma_wait<0>();
    if (k_blocks > 0 && first) arch::barrier_arrive(&smem.empty[previous]);
}

// BackwardWgmmaEngine, whose operands are rounded first: rows of A along the row (B are weights, of
// which that is done), both operands of a weight gradient along the slots.
class Mxfp8WgmmaEngine : public BackwardWgmmaEngine {
  public:
    using BackwardWgmmaEngine::BackwardWgmmaEngine;

    template <Major kA, Major kB, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t k_blocks, float (&sum)[128],
                                                    Beside&& beside) {
        static_assert(kA == Major::K);
        const auto prepare = [this](int32_t, int index) {
            round_rows(arch::shared_address(smem_.stage[index]) + consumer_ * kHalfABytes);
            arch::fence_shared_to_copies();
            arch::warpgroup_sync(1 + consumer_);
        };
        multiply_prepared<kA, kB>(smem_, stage_, consumer_, k_blocks, false, sum, prepare, beside);
    }

    // task.read sees the block of A as it came. Each consumer rounds its own rows of the gradient,
    // which are columns of A, and half of the columns of B, which both multiply.
    template <Major kA, Major kB, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t k_blocks, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        static_assert(kA == Major::Outer && kB == Major::Outer);
        const auto prepare = [this, &task](int32_t k, int index) {
            const uint32_t at = arch::shared_address(smem_.stage[index]);
            task.read(k, at + consumer_ * kHalfABytes);
            round_block_of_columns(at + consumer_ * kHalfABytes);
            round_two_blocks_of_columns(at + kABytes + consumer_ * (kBBytes / 2));
            arch::fence_shared_to_copies();
            arch::group_sync<kConsumers * 128>(kBothConsumers);
        };
        task.begin(sum);
        multiply_prepared<kA, kB>(smem_, stage_, consumer_, k_blocks, task.continues(), sum,
                                  prepare, beside);
    }

  private:
    static constexpr int kHalfABytes = kABytes / 2;
    static constexpr int kBothConsumers = 1 + kConsumers;  // behind those of a consumer each
};

}  // namespace mok::kernels
