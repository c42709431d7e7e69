#pragma once

#include "kernels/backward_issuer.cuh"
#include "kernels/backward_pair_layout.cuh"
#include "kernels/backward_products.cuh"

// The matrix engine of a backward by pairs: the issuer role, and the consumers' side.
namespace mok::kernels {

// One thread of each CTA, of which the first CTA's multiplies for both.
class BackwardPairIssuer {
  public:
    __device__ BackwardPairIssuer(const BackwardParams& p, BackwardPairMemory& smem)
        : p_(p), smem_(smem), tensor_(smem.blackwell.tensor) {
        sums_.parity = 1;  // both accumulators are empty
    }

    __device__ void run(bool is_first) {
        arch::RingState<kEntries> task;
        while (true) {
            arch::barrier_wait(&smem_.entry_full[task.index], task.parity);
            const BackwardEntry& e = smem_.entries[task.index];
            const bool more = e.more;
            const Products products = products_of(p_, e);
            arch::barrier_arrive(&smem_.entry_empty[task.index]);
            task.advance();
            if (!more) return;
            if (is_first && products.k_blocks > 0) multiply(products);
        }
    }

  private:
    __device__ void multiply(const Products& p) {
        arch::pair_wait(&tensor_.empty[sums_.index], sums_.parity);
        if (p.continues) {
            arch::pair_wait(&tensor_.begun, begun_parity_);
            begun_parity_ ^= 1;
        }
        const uint32_t sums =
            arch::tensor_address(tensor_.address, 0, sums_.index * kAccumulatorColumns);
        const uint32_t instruction =
            arch::umma_instruction(2 * plan::kTileRows, plan::kOutCols, p.a, p.b);
        const uint64_t a_step = arch::umma_operand_step(p.a), b_step = arch::umma_operand_step(p.b);
        for (int32_t k = 0; k < p.k_blocks; ++k) {
            arch::pair_wait(&smem_.pair_full[stage_.index], stage_.parity);
            arch::umma_fence_after();
            const uint32_t at = arch::shared_address(smem_.pair_stage(stage_.index));
            const uint64_t a = arch::umma_operand(at, p.a),
                           b = arch::umma_operand(at + kABytes, p.b);
#pragma unroll
            for (int step = 0; step < kTileK / 16; ++step) {
                arch::umma_m256n256k16(sums, a + step * a_step, b + step * b_step, instruction,
                                       p.continues || (k | step) != 0);
            }
            arch::umma_commit_pair(&smem_.pair_empty[stage_.index]);
            stage_.advance();
        }
        arch::umma_commit_pair(&tensor_.full[sums_.index]);
        sums_.advance();
    }

    const BackwardParams& p_;
    BackwardPairMemory& smem_;
    TensorMemory& tensor_;
    arch::RingState<kProductStages> stage_;
    arch::RingState<kAccumulators> sums_;
    uint32_t begun_parity_ = 0;
};

// The engine for one thread of a consumer; see BackwardWgmmaEngine for the contract. Its stages are
// the consumers' own. All that is done beside products comes before their sums: the other CTA may
// wait for what this one has finished, and for a stage that it gives back.
class BackwardPairEngine : public TensorMemoryEngine<kPair, kAccumulators, kConsumerStages> {
    using Base = TensorMemoryEngine<kPair, kAccumulators, kConsumerStages>;

  public:
    __device__ BackwardPairEngine(const BackwardParams& p, BackwardPairMemory& smem, int consumer)
        : Base(smem, smem.blackwell.tensor, consumer), p_(p) {}

    __device__ static bool is_dry(const BackwardEntry& e) { return kernels::is_dry(e); }
    // Before a task's sums.
    __device__ void begin(const BackwardEntry& e) {
        is_dry_ = is_dry(e);
        continues_ = plan::is_wgrad(e.kind) && wgrad_continues(e, wgrad_target(p_, e));
    }

    template <arch::Major, arch::Major, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t, float (&sum)[128], Beside&& beside) {
        call_all(beside);
        take(sum);
    }
    template <arch::Major, arch::Major, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t k_blocks, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        if (task.continues()) put(task);
        call_all(beside);
        if (task.reads_blocks()) read_blocks(k_blocks, task, [](int32_t) {});
        take(sum);
    }
    // Of a dry entry nobody puts sums to go on from or loads other stages.
    __device__ void pass_over(int32_t k_blocks, int32_t other_stages) {
        if (k_blocks > 0) {
            if (continues_) tell_begun();
            await_sums();
            give_sums();
        }
        Base::pass_over(0, is_dry_ ? 0 : other_stages);
    }

  private:
    const BackwardParams& p_;
    bool is_dry_ = false, continues_ = false;
};

}  // namespace mok::kernels
