#pragma once

#include "kernels/backward_products.cuh"
#include "kernels/block_scaled_backward_layout.cuh"

namespace mok::kernels::block_scaled {

// The engine of the MXFP8 backward for one thread of a consumer: sums from one accumulator, stages
// as the loader and the makers count them. See BackwardWgmmaEngine for the contract.
class BackwardEngine : public TensorMemoryEngine<1, kSums, kRowStages> {
    using Base = TensorMemoryEngine<1, kSums, kRowStages>;

  public:
    __device__ BackwardEngine(BackwardMemory& smem, int consumer)
        : Base(smem, smem.blackwell.tensor, consumer) {}

    // Before a task's sums.
    __device__ void begin(const BackwardEntry& e) { row_blocks_ = row_blocks(e.kind, e.k_blocks); }

    template <arch::Major kA, arch::Major kB, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t, float (&sum)[128], Beside&& beside) {
        Base::template multiply_blocks<kA, kB>(row_blocks_, sum, beside);
    }
    // All that is done beside products comes first: it gives a stage back, of two, and the second
    // block of rows waits for that.
    template <arch::Major, arch::Major, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        if (task.continues()) put(task);
        call_all(beside);
        if (task.reads_blocks()) {
            read_blocks(row_blocks_, task, [](int32_t) {});
        } else {
            skip(row_blocks_);
        }
        take(sum);
    }
    __device__ void pass_over(int32_t, int32_t other_stages) {
        Base::pass_over(row_blocks_, other_stages);
    }

  private:
    int32_t row_blocks_ = 0;
};

}  // namespace mok::kernels::block_scaled
