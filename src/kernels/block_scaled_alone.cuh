#pragma once

#include "arch/copy.cuh"
#include "kernels/block_scaled_products.cuh"
#include "kernels/task_queue.cuh"

// The MXFP8 forward of CTAs that multiply alone, 128 x 256 x 32: loader and issuer, as those of a
// pair are (blackwell_pair.cuh). A stage has the bytes of a BF16 one, and the place of the last one
// holds the scales of the others.
namespace mok::kernels::block_scaled {

inline constexpr int kAloneStages = kernels::kStages - 1;
static_assert(kAloneStages * kScaleBytes <= kStageBytes);
static_assert(kStageBytes == (plan::kTileRows + plan::kOutCols) * kTileK);

struct AloneMemory : ForwardSharedMemory {
    BlackwellState blackwell;
    arch::Barrier shared_empty;  // consumers' warps -> issuer: as SharedMemory has it

    __device__ uint8_t* scales(int i) { return stage[kAloneStages] + i * kScaleBytes; }
};
inline constexpr int kAloneBytes = sizeof(AloneMemory) + 1024;
static_assert(kAloneBytes <= 232448, "227 KB of shared memory a CTA");

__device__ inline void init_barriers(AloneMemory& smem) {
    for (int i = 0; i < kAloneStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);   // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], 1);  // products
    }
    for (int i = 0; i < kQueue; ++i) {
        arch::barrier_init(&smem.task_full[i], 32);                     // the scheduler's lanes
        arch::barrier_init(&smem.task_empty[i], 2 + kConsumers * 128);  // loader, issuer, consumers
    }
    arch::barrier_init(&smem.shared_empty, kConsumerWarps);
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, 1);
    init_launch_control(smem.blackwell.launch);
    init_tensor_memory(smem.blackwell.tensor, 1);
    arch::barrier_init_fence();
}

// One thread. Of a task whose wait has expired nothing is loaded.
class AloneLoader {
  public:
    __device__ AloneLoader(const BlockScaledExpertMaps& maps, AloneMemory& smem)
        : maps_(maps), smem_(smem) {
        stage_.parity = 1;  // all stages are empty
    }

    __device__ void run() {
        for_each_task_to_load(smem_, [&](const TileTask& t) {
            const TaskOperands o = task_operands(maps_, t);
            for (int32_t k = 0; k < o.k_blocks; ++k) {
                arch::barrier_wait(&smem_.empty[stage_.index], stage_.parity);
                arch::barrier_arrive_expect(&smem_.full[stage_.index],
                                            t.is_dry ? 0 : kStageBytes + kScaleBytes);
                if (!t.is_dry) load(o, k);
                stage_.advance();
            }
        });
    }

  private:
    __device__ void load(const TaskOperands& o, int32_t k) const {
        arch::Barrier* const full = &smem_.full[stage_.index];
        uint8_t* const at = smem_.stage[stage_.index];
        uint8_t* const scales = smem_.scales(stage_.index);
        const int32_t col = k * kTileK;
        arch::load_tile(at, o.a, col, o.a_row, 0, full);
        arch::load_tile(scales, o.a_scales, 0, o.a_tile + k, 0, full);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            arch::load_tile(at + kABytes + i * (kBBytes / 2), o.b[i], col, o.b_row[i], o.expert,
                            full);
            arch::load_tile(scales + (1 + i) * kTileBytes, o.b_scales[i], 0, o.b_tile[i] + k,
                            o.expert, full);
        }
    }

    const BlockScaledExpertMaps& maps_;
    AloneMemory& smem_;
    arch::RingState<kAloneStages> stage_;
};

// One thread. The next stage's copies of scales wait for a stage's products (arch::copy_scales).
class AloneIssuer {
  public:
    __device__ explicit AloneIssuer(AloneMemory& smem)
        : smem_(smem), tensor_(smem.blackwell.tensor) {
        sums_.parity = shared_parity_ = 1;  // both accumulators are empty
    }

    __device__ void run() {
        for_each_task_to_issue(smem_, [&](int32_t k_blocks) { issue(k_blocks_of(k_blocks)); });
    }

  private:
    __device__ void issue(int32_t k_blocks) {
        arch::barrier_wait(&tensor_.empty[sums_.index], sums_.parity);
        // The columns that both accumulators have: consumers have read those of the task before.
        arch::barrier_wait(&smem_.shared_empty, shared_parity_);
        shared_parity_ ^= 1;
        const uint32_t sums = arch::tensor_address(tensor_.address, 0, accumulator_at(sums_.index));
        for (int32_t k = 0; k < k_blocks; ++k) {
            arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
            arch::umma_fence_after();
            multiply(stage_.index, sums, k == 0);
            arch::umma_commit(&smem_.empty[stage_.index]);
            stage_.advance();
        }
        arch::umma_commit(&tensor_.full[sums_.index]);
        sums_.advance();
    }
    __device__ void multiply(int stage, uint32_t sums, bool first) const {
        const uint32_t scales = arch::shared_address(smem_.scales(stage));
        const uint32_t a_scales = arch::tensor_address(tensor_.address, 0, kScalesAt);
        const uint32_t b_scales = a_scales + arch::kScaleTileColumns;
#pragma unroll
        for (int i = 0; i < kScaleTiles; ++i) {
            arch::copy_scales(a_scales + i * arch::kScaleTileColumns,
                              arch::scale_tile_descriptor(scales + i * kTileBytes));
        }
        const uint32_t at = arch::shared_address(smem_.stage[stage]);
        const uint64_t a = arch::umma_operand(at, arch::Major::K);
        const uint64_t b = arch::umma_operand(at + kABytes, arch::Major::K);
#pragma unroll
        for (int step = 0; step < kTileK / 32; ++step) {
            arch::umma_mxfp8_m128n256k32(
                sums, a + step * arch::kUmmaByteStep, b + step * arch::kUmmaByteStep,
                arch::umma_mxfp8_instruction(plan::kTileRows, plan::kOutCols, step), a_scales,
                b_scales, !first || step != 0);
        }
    }

    AloneMemory& smem_;
    TensorMemory& tensor_;
    arch::RingState<kAloneStages> stage_;
    arch::RingState<kAccumulators> sums_;
    uint32_t shared_parity_ = 0;
};

}  // namespace mok::kernels::block_scaled
