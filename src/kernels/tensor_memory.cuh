#pragma once

#include "arch/cta_pair.cuh"
#include "arch/tcgen05.cuh"
#include "kernels/consumer.cuh"
#include "kernels/tensor_rows.h"

// The matrix engine of sm_100a and sm_103a. One thread, the issuer, multiplies; the sums of a task,
// 128 rows x 256 columns of FP32, are in one of two halves of the tensor memory. So the products of
// a task run while the consumers finish the one before. Both consumers read 16 of the 32 rows that
// each of their warps can reach, in the order of registers that wgmma has them, and go on as on
// Hopper.
namespace mok::kernels {

inline constexpr int kAccumulators = 2;
inline constexpr uint32_t kAccumulatorColumns = plan::kOutCols;
static_assert(kAccumulators * kAccumulatorColumns == arch::kTensorColumns);
static_assert(plan::kTileRows == arch::kTensorLanes && plan::kOutCols == 2 * plan::kGateUpCols);

// Of a CTA, in shared memory.
struct TensorMemory {
    arch::Barrier full[kAccumulators];   // issuer's products -> consumers: the sums are there
    arch::Barrier empty[kAccumulators];  // consumers' warps -> issuer: they have read them
    arch::Barrier begun;                 // consumers' warps -> issuer: sums to go on from are there
    uint32_t address;                    // of the tensor memory
};
inline constexpr int kConsumerWarps = 4 * kConsumers;

// ctas: whose consumers the issuer multiplies for.
__device__ inline void init_tensor_memory(TensorMemory& tensor, int ctas) {
    for (int i = 0; i < kAccumulators; ++i) {
        arch::barrier_init(&tensor.full[i], 1);
        arch::barrier_init(&tensor.empty[i], ctas * kConsumerWarps);
    }
    arch::barrier_init(&tensor.begun, ctas * kConsumerWarps);
}

// A stage goes back to the loader when the products are done with it and both consumers are: where
// these do not read it, the issuer arrives for them.
inline constexpr int kStageReaders = 1 + kConsumers;

// A task's products.
struct Products {
    int32_t k_blocks;
    arch::Major a, b;
    bool continues;        // the sums go on from what the consumers put there
    bool read_blocks;      // the consumers read the blocks of A too
    int32_t other_stages;  // the products' successors in the ring, that consumers alone use
};

// The issuer role: one thread.
class Issuer {
  public:
    __device__ Issuer(SharedMemory& smem, TensorMemory& tensor) : smem_(smem), tensor_(tensor) {
        sums_.parity = 1;  // both accumulators are empty
    }

    __device__ void issue(const Products& p) {
        if (p.k_blocks > 0) multiply(p);
        for (int32_t i = 0; i < p.other_stages; ++i) {
            arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
            arch::barrier_arrive(&smem_.empty[stage_.index]);
            stage_.advance();
        }
    }

  private:
    __device__ void multiply(const Products& p) {
        arch::barrier_wait(&tensor_.empty[sums_.index], sums_.parity);
        if (p.continues) {
            arch::barrier_wait(&tensor_.begun, begun_parity_);
            begun_parity_ ^= 1;
        }
        const uint32_t sums =
            arch::tensor_address(tensor_.address, 0, sums_.index * kAccumulatorColumns);
        const uint32_t instruction =
            arch::umma_instruction(plan::kTileRows, plan::kOutCols, p.a, p.b);
        const uint64_t a_step = arch::umma_operand_step(p.a), b_step = arch::umma_operand_step(p.b);
        for (int32_t k = 0; k < p.k_blocks; ++k) {
            arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
            arch::umma_fence_after();
            const uint32_t at = arch::shared_address(smem_.stage[stage_.index]);
            const uint64_t a = arch::umma_operand(at, p.a);
            const uint64_t b = arch::umma_operand(at + kABytes, p.b);
#pragma unroll
            for (int step = 0; step < kTileK / 16; ++step) {
                arch::umma_m128n256k16(sums, a + step * a_step, b + step * b_step, instruction,
                                       p.continues || (k | step) != 0);
            }
            if (!p.read_blocks) arch::barrier_arrive_many(&smem_.empty[stage_.index], kConsumers);
            arch::umma_commit(&smem_.empty[stage_.index]);
            stage_.advance();
        }
        arch::umma_commit(&tensor_.full[sums_.index]);
        sums_.advance();
    }

    SharedMemory& smem_;
    TensorMemory& tensor_;
    arch::RingState<kStages> stage_;
    arch::RingState<kAccumulators> sums_;
    uint32_t begun_parity_ = 0;
};

// The engine for one thread of a consumer; see WgmmaEngine and BackwardWgmmaEngine for the
// contract. kCtas: CTAs that the issuer multiplies for, its own or, of a cluster of two, both; of
// these it has `multiply` and `pass_over` without other stages, for no consumer reads a stage.
// kSums accumulators of those that there could be, a ring of kRing stages.
template <int kCtas, int kSums = kAccumulators, int kRing = kStages>
class TensorMemoryEngine {
  public:
    __device__ TensorMemoryEngine(SharedMemory& smem, TensorMemory& tensor, int consumer)
        : smem_(smem), tensor_(tensor), consumer_(consumer) {
        if constexpr (kCtas > 1) {
            empty_ = arch::cluster_address(tensor.empty, 0);
            begun_ = arch::cluster_address(&tensor.begun, 0);
        }
    }

    __device__ static int row_offset(int consumer) {
        const int warp = threadIdx.x % 128 / 32;
        return first_tensor_row(consumer, warp) - 16 * warp;
    }
    __device__ static int idle_rows(int) { return 0; }
    __device__ static int half_of_tile(int) { return threadIdx.x % 128 / 64; }
    __device__ static uint8_t* rows_of(uint8_t* block, int consumer) {
        return block + row_offset(consumer) * 128;
    }
    __device__ static void sync(int) { arch::group_sync<128 * kConsumers>(kBarrierId); }

    __device__ void multiply(int32_t k_blocks, float (&sum)[128]) {
        take(sum);
        skip(k_blocks);
    }
    template <arch::Major, arch::Major, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t k_blocks, float (&sum)[128],
                                                    Beside&& beside) {
        call_all(beside);
        skip(k_blocks);
        take(sum);
    }
    template <arch::Major, arch::Major, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t k_blocks, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        if (task.continues()) put(task);
        if (task.reads_blocks()) {
            read_blocks(k_blocks, task, beside);
        } else {
            call_all(beside);
            skip(k_blocks);
        }
        take(sum);
    }
    __device__ void pass_over(int32_t k_blocks, int32_t other_stages) {
        if (k_blocks > 0) {
            await_sums();
            give_sums();
            skip(k_blocks);
        }
        const int thread = threadIdx.x % 128;
        for (int32_t i = 0; i < other_stages; ++i) {
            if (thread < 32) {
                arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
                __syncwarp();  // before the arrival that lets the stage go on
                if (thread == 0) arch::barrier_arrive(&smem_.empty[stage_.index]);
            }
            stage_.advance();
        }
        sync(consumer_);
    }

    __device__ arch::RingState<kRing>& stage() { return stage_; }

    // As many calls of beside() as do all that a consumer has to do beside products.
    static constexpr int32_t kBesideBlocks = 6;

  protected:
    static constexpr int kBarrierId = 2 + kConsumers;  // consumers have 1.., loaders the next

    __device__ uint32_t sums_address() const {
        const int warp = threadIdx.x % 128 / 32;
        return arch::tensor_address(tensor_.address, first_tensor_row(consumer_, warp),
                                    sums_.index * kAccumulatorColumns);
    }
    __device__ void await_sums() {
        arch::barrier_wait(&tensor_.full[sums_.index], sums_.parity);
        __syncwarp();
    }
    // This warp has read its part of the sums.
    __device__ void give_sums() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            if constexpr (kCtas > 1) {
                arch::pair_arrive(empty_ + sums_.index * sizeof(arch::Barrier));
            } else {
                arch::barrier_arrive(&tensor_.empty[sums_.index]);
            }
        }
        sums_.advance();
    }
    __device__ __forceinline__ void take(float (&sum)[128]) {
        await_sums();
        arch::umma_fence_after();
        arch::load_sums(sum, sums_address());
        arch::umma_fence_before();
        give_sums();
    }
    // The next sums go on from what task.begin() makes. Nobody reads or adds to them yet: this warp
    // has read what was there, and the issuer waits.
    template <class Task>
    __device__ __forceinline__ void put(const Task& task) {
        float first[128] = {};  // task.begin() leaves what lies outside
        task.begin(first);
        __syncwarp();
        arch::store_sums(first, sums_address());
        arch::umma_fence_before();
        tell_begun();
    }
    // This warp has put its part of the first sums.
    __device__ void tell_begun() const {
        __syncwarp();
        if (threadIdx.x % 32 != 0) return;
        if constexpr (kCtas > 1) {
            arch::pair_arrive(begun_);
        } else {
            arch::barrier_arrive(&tensor_.begun);
        }
    }
    // All that a consumer does beside products; it need not wait for them.
    template <class Beside>
    __device__ __forceinline__ void call_all(Beside&& beside) {
#pragma unroll 1
        for (int32_t k = 0; k < kBesideBlocks; ++k) beside(k);
    }
    // task.read() with every block of A, this consumer's 64 columns; it ends with a barrier of the
    // consumer.
    template <class Task, class Beside>
    __device__ __forceinline__ void read_blocks(int32_t k_blocks, Task& task, Beside&& beside) {
#pragma unroll 1
        for (int32_t k = 0; k < k_blocks; ++k) {
            arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
            __syncwarp();
            beside(k);
            task.read(
                k, arch::shared_address(smem_.stage[stage_.index]) + consumer_ * 64 * kTileK * 2);
            if (threadIdx.x % 128 == 0) arch::barrier_arrive(&smem_.empty[stage_.index]);
            stage_.advance();
        }
    }
    // Stages that the products alone use.
    __device__ void skip(int32_t stages) {
        const int32_t to = stage_.index + stages;
        stage_.parity ^= to / kRing & 1;
        stage_.index = to % kRing;
    }

    SharedMemory& smem_;
    TensorMemory& tensor_;
    int consumer_;
    uint32_t empty_ = 0, begun_ = 0;  // of a pair: the first CTA's tensor_.empty[0] and begun
    arch::RingState<kRing> stage_;
    arch::RingState<kSums> sums_;
};

}  // namespace mok::kernels
