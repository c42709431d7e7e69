#pragma once

#include "arch/wgmma.cuh"
#include "kernels/pair.cuh"

// The matrix engine of sm_90a: a consumer, a warpgroup, multiplies for itself.
namespace mok::kernels {

// sum[64, 256] over all k blocks of a task, in order. The tensor core is fed one stage ahead of the
// stage that is given back by one thread: the products hold the warps of the consumer together.
__device__ inline void multiply(SharedMemory& smem, const StageOwners& owners,
                                arch::RingState<kStages>& stage, int consumer, int32_t k_blocks,
                                float (&sum)[128]) {
    const bool first = threadIdx.x % 128 == 0;
    int previous = 0;
    for (int32_t k = 0; k < k_blocks; ++k) {
        arch::barrier_wait(&smem.full[stage.index], stage.parity);
        const uint32_t a = arch::shared_address(smem.stage[stage.index]);
        const uint64_t a_at = arch::k_major_descriptor(a + consumer * 64 * kTileK * 2);
        const uint64_t b_at = arch::k_major_descriptor(a + kABytes);
        arch::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            arch::wgmma_m64n256k16(sum, a_at + 2 * step, b_at + 2 * step, (k | step) != 0);
        }
        arch::wgmma_commit();
        arch::wgmma_wait<1>();
        if (k > 0 && first) owners.give_back(previous);
        previous = stage.index;
        stage.advance();
    }
    arch::wgmma_wait<0>();
    if (first) owners.give_back(previous);
}

// What a consumer does for a task in which its half of the tile has no rows: it gives every stage
// back as it comes. One warp alone waits for the stages, the one of the thread that gives them
// back: no product holds the others together with it, and a warp that comes two rounds late would
// take the phase of a barrier for an earlier one's.
__device__ inline void pass_over(SharedMemory& smem, const StageOwners& owners,
                                 arch::RingState<kStages>& stage, int consumer, int32_t k_blocks) {
    const int thread = threadIdx.x % 128;
    for (int32_t k = 0; k < k_blocks; ++k) {
        if (thread < 32) {
            arch::barrier_wait(&smem.full[stage.index], stage.parity);
            __syncwarp();  // before the arrival that lets the stage go on
            if (thread == 0) owners.give_back(stage.index);
        }
        stage.advance();
    }
    arch::warpgroup_sync(1 + consumer);
}

// The matrix engine of sm_90a for one thread of a consumer: the warpgroup multiplies itself, and
// its sums are in registers from the first block on.
class WgmmaEngine {
  public:
    __device__ WgmmaEngine(SharedMemory& smem, const arch::Cluster& cluster, int consumer)
        : smem_(smem), owners_(smem, cluster), consumer_(consumer) {}

    // The tile's row that is the consumer's row r, less r: the same for all rows of a warp.
    __device__ static int row_offset(int consumer) { return 64 * consumer; }
    // A consumer has something to do in tiles of more than so many real rows.
    __device__ static int idle_rows(int consumer) { return 64 * consumer; }
    // Which 64 rows of the tile this thread's are among: 0 or 1.
    __device__ static int half_of_tile(int consumer) { return consumer; }
    // Where a consumer's row 0 lies, and so every row, in a block of a tile's 128 rows x 128 bytes
    // that the consumers share; a consumer's tile stores take rows 64 * consumer up to + 63.
    __device__ static uint8_t* rows_of(uint8_t* block, int consumer) {
        return block + row_offset(consumer) * 128;
    }
    // Barrier among the threads that write the rows of one tile store.
    __device__ static void sync(int consumer) { arch::warpgroup_sync(1 + consumer); }

    // The sums of a forward task's k blocks.
    __device__ void multiply(int32_t k_blocks, float (&sum)[128]) {
        kernels::multiply(smem_, owners_, stage_, consumer_, k_blocks, sum);
    }
    // A task without rows: its products, if there are any, and its other stages, the products'
    // successors in the ring that consumers alone use.
    __device__ void pass_over(int32_t k_blocks, int32_t other_stages) {
        kernels::pass_over(smem_, owners_, stage_, consumer_, k_blocks + other_stages);
    }

    // The next stage of the ring.
    __device__ arch::RingState<kStages>& stage() { return stage_; }

  protected:
    SharedMemory& smem_;
    StageOwners owners_;
    int consumer_;
    arch::RingState<kStages> stage_;
};

}  // namespace mok::kernels
