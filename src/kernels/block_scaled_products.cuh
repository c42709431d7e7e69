#pragma once

#include "arch/block_scale.cuh"
#include "kernels/block_scaled_layout.cuh"
#include "kernels/block_scaled_params.h"

// The operands and products of the MXFP8 forward, as PairLoader and PairIssuer ask for them, and
// the consumers' engine, of a pair of CTAs or of one (block_scaled_alone.cuh).
namespace mok::kernels::block_scaled {

// What a task multiplies: rows of x or hidden from a_row on, and two times 128 rows of weights of
// an expert. A tile of scales has a block of k.
struct TaskOperands {
    const CUtensorMap *a, *a_scales;
    const CUtensorMap *b[2], *b_scales[2];
    int32_t a_row, a_tile, b_row[2], b_tile[2];
    int32_t expert, k_blocks;
};
__device__ inline TaskOperands task_operands(const BlockScaledExpertMaps& maps, const TileTask& e) {
    const auto map_of = [](PairWeights matrix, const CUtensorMap& gate, const CUtensorMap& up,
                           const CUtensorMap& down) {
        return matrix == PairWeights::Gate ? &gate : matrix == PairWeights::Up ? &up : &down;
    };
    const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
    TaskOperands o;
    o.k_blocks = k_blocks_of(e.k_blocks);
    o.expert = e.expert;
    o.a = gate_up ? &maps.x : &maps.hidden_load;
    o.a_scales = gate_up ? &maps.x_scales : &maps.hidden_scales;
    o.a_row = e.row;
    o.a_tile = static_cast<int32_t>(first_scale_tile(e.row, o.k_blocks));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const PairHalf half = pair_half(gate_up, e.part, i);
        o.b[i] = map_of(half.matrix, maps.gate, maps.up, maps.down);
        o.b_scales[i] = map_of(half.matrix, maps.gate_scales, maps.up_scales, maps.down_scales);
        o.b_row[i] = half.row;
        o.b_tile[i] = static_cast<int32_t>(first_scale_tile(half.row, o.k_blocks));
    }
    return o;
}

// 128 elements of k a stage: tiles of elements as in BF16, and tiles of scales: of the CTA's own
// rows of A, and of all 256 rows of B, which both CTAs need.
class Operands {
  public:
    static constexpr int kStages = block_scaled::kStages;

    __device__ Operands(const BlockScaledExpertMaps& maps, SharedMemory& smem,
                        const arch::Cluster& cluster)
        : maps_(maps), smem_(smem), rank_(static_cast<int32_t>(cluster.rank)) {}

    __device__ void begin(const TileTask& e) {
        o_ = task_operands(maps_, e);
        has_a_ = !e.is_dry;
    }
    __device__ int32_t k_blocks() const { return o_.k_blocks; }
    __device__ uint32_t bytes() const {
        return (has_a_ ? kABytes + kTileBytes : 0) + kBBytes / 2 + 2 * kTileBytes;
    }
    __device__ void load(int stage, int32_t k, uint32_t full) const {
        uint8_t* const at = smem_.pair_stage(stage);
        uint8_t* const scales = smem_.scales(stage);
        const int32_t col = k * kTileK;
        if (has_a_) {
            arch::load_tile_of_pair(at, o_.a, col, o_.a_row, 0, full);
            arch::load_tile_of_pair(scales, o_.a_scales, 0, o_.a_tile + k, 0, full);
        }
        const bool first = rank_ == 0;
        arch::load_tile_of_pair(at + kABytes, first ? o_.b[0] : o_.b[1], col,
                                first ? o_.b_row[0] : o_.b_row[1], o_.expert, full);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            arch::load_tile_of_pair(scales + (1 + i) * kTileBytes, o_.b_scales[i], 0,
                                    o_.b_tile[i] + k, o_.expert, full);
        }
    }

  private:
    const BlockScaledExpertMaps& maps_;
    SharedMemory& smem_;
    int32_t rank_;
    TaskOperands o_;  // of the task whose blocks are being loaded
    bool has_a_ = false;
};

// A stage's scales go to tensor memory and are read by its four products, one byte of each column
// by each; the next stage's copies wait for these (arch::copy_pair_scales).
class Products {
  public:
    static constexpr int kStages = block_scaled::kStages;

    __device__ explicit Products(SharedMemory& smem) : smem_(smem) {}
    __device__ static int32_t k_blocks(int32_t of_task) { return k_blocks_of(of_task); }
    __device__ static uint32_t sums(int i) { return accumulator_at(i); }
    // The columns that both accumulators have: the consumers have read those of the task before.
    __device__ void await() {
        arch::pair_wait(&smem_.shared_empty, shared_parity_);
        shared_parity_ ^= 1;
    }
    __device__ void multiply(int stage, uint32_t sums, bool first) const {
        constexpr int kM = 2 * plan::kTileRows, kN = plan::kOutCols;
        const uint32_t scales = arch::shared_address(smem_.scales(stage));
        const uint32_t a_scales =
            arch::tensor_address(smem_.blackwell.tensor.address, 0, kScalesAt);
        const uint32_t b_scales = a_scales + arch::kScaleTileColumns;
#pragma unroll
        for (int i = 0; i < kScaleTiles; ++i) {
            arch::copy_pair_scales(a_scales + i * arch::kScaleTileColumns,
                                   arch::scale_tile_descriptor(scales + i * kTileBytes));
        }
        const uint32_t at = arch::shared_address(smem_.pair_stage(stage));
        const uint64_t a = arch::umma_operand(at, arch::Major::K);
        const uint64_t b = arch::umma_operand(at + kABytes, arch::Major::K);
#pragma unroll
        for (int step = 0; step < kTileK / 32; ++step) {
            arch::umma_mxfp8_m256n256k32(sums, a + step * arch::kUmmaByteStep,
                                         b + step * arch::kUmmaByteStep,
                                         arch::umma_mxfp8_instruction(kM, kN, step), a_scales,
                                         b_scales, !first || step != 0);
        }
    }

  private:
    SharedMemory& smem_;
    uint32_t shared_parity_ = 1;  // nobody has to read anything at first
};

// The consumers' side. A task's sums stay in tensor memory and are read 32 columns at a time, but
// for the 32 columns that hold what the accumulators share, which are read first.
// kCtas: as TensorMemoryEngine has it.
template <int kCtas>
class Engine : public TensorMemoryEngine<kCtas> {
    using Base = TensorMemoryEngine<kCtas>;
    using Base::tensor_, Base::sums_, Base::consumer_, Base::await_sums, Base::give_sums;

  public:
    // 16 rows of a warp, as load_64_columns has them: [4 j + 2 h + c] is column 8 j + 2 (t % 4) +
    // c.
    static constexpr int kColumns = 32;
    using Columns = float[16];
    static_assert(kSharedColumns <= kColumns);

    // Memory: SharedMemory or AloneMemory.
    template <class Memory>
    __device__ Engine(Memory& smem, int consumer)
        : Base(smem, smem.blackwell.tensor, consumer), shared_empty_(&smem.shared_empty) {}

    // Until a task's sums are there; `meanwhile` is called before.
    template <class Meanwhile>
    __device__ void begin(Meanwhile&& meanwhile) {
        meanwhile();
        await_sums();
        arch::umma_fence_after();
        const int warp = threadIdx.x % 128 / 32;
        sums_at_ = arch::tensor_address(tensor_.address, first_tensor_row(consumer_, warp),
                                        accumulator_at(sums_.index));
        held_at_ = sums_.index == 0 ? kAccumulatorColumns - kColumns : 0;
        arch::load_32_columns(held_, sums_at_ + held_at_);
        arch::umma_fence_before();
        arrive_shared();
    }
    // Columns [col, col + 32), col a multiple of 32.
    __device__ void load(Columns& to, uint32_t col) const {
        if (col == held_at_) {
#pragma unroll
            for (int i = 0; i < 16; ++i) to[i] = held_[i];
        } else {
            arch::load_32_columns(to, sums_at_ + col);
        }
    }
    // Nobody of this warp reads the task's sums any more.
    __device__ void end() {
        arch::umma_fence_before();
        give_sums();
    }
    // A task without rows.
    template <class Meanwhile>
    __device__ void pass_over(Meanwhile&& meanwhile) {
        meanwhile();
        await_sums();
        arrive_shared();
        give_sums();
        Base::sync(consumer_);
    }

  private:
    __device__ void arrive_shared() {
        __syncwarp();
        if (threadIdx.x % 32 != 0) return;
        if constexpr (kCtas > 1) {
            arch::pair_arrive(arch::cluster_address(shared_empty_, 0));
        } else {
            arch::barrier_arrive(shared_empty_);
        }
    }

    arch::Barrier* shared_empty_;  // where the issuer's CTA has it too
    // Of the task at hand.
    uint32_t sums_at_ = 0, held_at_ = 0;
    Columns held_;
};

}  // namespace mok::kernels::block_scaled
