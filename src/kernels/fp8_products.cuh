#pragma once

#include "arch/copy.cuh"
#include "arch/wgmma_fp8.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/pair.cuh"

// The products of a consumer of the FP8 forward: sums of blocks of 128 along K, each formed by the
// tensor cores from zero and added in FP32 with its scales, in order:
//     sum = fma(partial, scale of the row * scale of the weights' block, sum)
namespace mok::kernels::fp8 {

// A consumer multiplies 128 columns at a time, all of a block of k, and adds them while the other
// consumer's products are under way: the sums of 64 x 256 leave room for one partial sum of 64 x
// 128. So the two have to take turns (Turns).
inline constexpr int kChunkCols = 128;
inline constexpr int kChunks = plan::kOutCols / kChunkCols;

// sum's columns of a chunk += partial * scale; scale[h] is that of row half h.
template <int kChunk>
__device__ inline void add_scaled(float (&sum)[128], float (&partial)[64],
                                  const float (&scale)[2]) {
    arch::settle(partial);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        sum[64 * kChunk + i] = fmaf(partial[i], scale[i / 2 % 2], sum[64 * kChunk + i]);
    }
}

// Where a consumer's 64 rows of A and B's first row of a stage lie (arch::k_major_place).
struct StageOperands {
    uint32_t a, b;
};
__device__ inline StageOperands operands_of_stage(const uint8_t* stage, int consumer) {
    const uint32_t at = arch::shared_address(stage);
    return {arch::k_major_place(at + consumer * 64 * kTileK), arch::k_major_place(at + kABytes)};
}
// partial = the products of a chunk's columns, begun.
template <int kChunk>
__device__ inline void issue(const StageOperands& at, float (&partial)[64]) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 32; ++step) {
        arch::wgmma_m64n128k32_e4m3(partial, at.a + 2 * step,
                                    at.b + kChunk * (kChunkCols * kTileK >> 4) + 2 * step,
                                    step != 0);
    }
    arch::wgmma_commit();
}

// Of a block of k: those of this thread's two rows times those of B's two blocks of 128 rows.
struct BlockScales {
    float of_chunk[kChunks][2];
};
// rows: where the scale of this thread's first row lies; weights: those of B's blocks.
__device__ inline BlockScales read_scales(uint32_t rows, uint32_t weights) {
    float row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        row[h] = __uint_as_float(arch::load_shared_word(rows + h * 8 * 4));
    }
    BlockScales scales;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        const float weight = __uint_as_float(arch::load_shared_word(weights + 4 * i));
        scales.of_chunk[i][0] = row[0] * weight;
        scales.of_chunk[i][1] = row[1] * weight;
        arch::settle(scales.of_chunk[i]);  // read before the products that hold the warps together
    }
    return scales;
}
// In bytes, where the scale of this thread's first row is among those of a tile.
__device__ inline uint32_t row_place(int consumer) {
    const int thread = threadIdx.x % 128;
    return (64 * consumer + 16 * (thread / 32) + thread % 32 / 4) * 4;
}

// Consumer 1 begins a task behind consumer 0's first chunk, and so stays half a turn behind: what
// one adds, the other's products cover. Both call it for the same tasks, of more blocks of k than
// there are stages: so neither can be a task ahead of the other here.
class Turns {
  public:
    __device__ Turns(int consumer, bool takes_turns)
        : follows_(takes_turns && consumer == 1), leads_(takes_turns && consumer == 0) {}

    __device__ void begin() const {
        if (follows_) arch::group_sync<256>(kBarrier);
    }
    // Behind the task's first chunk.
    __device__ void hand_on() const {
        if (leads_) arch::group_arrive<256>(kBarrier);
    }

  private:
    static constexpr int kBarrier = 1 + kConsumers;

    bool follows_, leads_;
};

// sum[64, 256] over all k blocks of a task, in order. A stage is given back by one thread, for the
// products hold the warps of the consumer together.
__device__ __forceinline__ void multiply(SharedMemory& smem, const StageOwners& owners,
                                         arch::RingState<kStages>& stage, int consumer,
                                         const Turns& turns, int32_t k_blocks, float (&sum)[128]) {
    static_assert(kChunks == 2);
    const uint32_t row = row_place(consumer);
#pragma unroll
    for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
    float partial[64];
    turns.begin();
#pragma unroll 1
    for (int32_t k = 0; k < k_blocks; ++k) {
        arch::barrier_wait(&smem.full[stage.index], stage.parity);
        const StageOperands at = operands_of_stage(smem.stage[stage.index], consumer);
        issue<0>(at, partial);
        const BlockScales scales =
            read_scales(arch::shared_address(smem.row_scales(stage.index)) + row,
                        arch::shared_address(smem.weight_scale[stage.index]));
        arch::wgmma_wait<0>();
        if (k == 0) turns.hand_on();
        add_scaled<0>(sum, partial, scales.of_chunk[0]);
        issue<1>(at, partial);
        arch::wgmma_wait<0>();
        if (threadIdx.x % 128 == 0) owners.give_back(stage.index);
        add_scaled<1>(sum, partial, scales.of_chunk[1]);
        stage.advance();
    }
}

}  // namespace mok::kernels::fp8
