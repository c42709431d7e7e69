#pragma once

#include "arch/block_scale.cuh"
#include "kernels/block_scaled_layout.cuh"
#include "kernels/block_scaled_params.h"

// The operands and products of the MXFP8 forward, as PairLoader, PairIssuer and the consumers of a
// pair of CTAs ask for them.
namespace mok::kernels::block_scaled {

// 128 elements of k a stage: tiles of elements as in BF16, and tiles of scales: of the CTA's own
// rows of A, and of all 256 rows of B, which both CTAs need.
class Operands {
  public:
    static constexpr int kStages = block_scaled::kStages;

    __device__ Operands(const BlockScaledExpertMaps& maps, SharedMemory& smem,
                        const arch::Cluster& cluster)
        : maps_(maps), smem_(smem), rank_(static_cast<int32_t>(cluster.rank)) {}

    __device__ void begin(const TileTask& e) {
        const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
        k_blocks_ = k_blocks_of(e.k_blocks);
        expert_ = e.expert;
        has_a_ = !e.is_dry;
        const PairHalf half = pair_half(gate_up, e.part, rank_);
        b_ = map_of(half.matrix, maps_.gate, maps_.up, maps_.down);
        b_row_ = half.row;
        a_ = gate_up ? &maps_.x : &maps_.hidden_load;
        a_row_ = e.row;
        a_scales_ = gate_up ? &maps_.x_scales : &maps_.hidden_scales;
        a_tile_ = static_cast<int32_t>(first_scale_tile(e.row, k_blocks_));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const PairHalf of_scales = pair_half(gate_up, e.part, i);
            b_scales_[i] =
                map_of(of_scales.matrix, maps_.gate_scales, maps_.up_scales, maps_.down_scales);
            b_tile_[i] = static_cast<int32_t>(first_scale_tile(of_scales.row, k_blocks_));
        }
    }
    __device__ int32_t k_blocks() const {
        return k_blocks_;
    }
    __device__ uint32_t bytes() const {
        return (has_a_ ? kABytes + kTileBytes : 0) + kBBytes / 2 + 2 * kTileBytes;
    }
    __device__ void load(int stage, int32_t k, uint32_t full) const {
        uint8_t* const at = smem_.pair_stage(stage);
        uint8_t* const scales = smem_.scales(stage);
        const int32_t col = k * kTileK;
        if (has_a_) {
            arch::load_tile_of_pair(at, a_, col, a_row_, 0, full);
            arch::load_tile_of_pair(scales, a_scales_, 0, a_tile_ + k, 0, full);
        }
        arch::load_tile_of_pair(at + kABytes, b_, col, b_row_, expert_, full);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            arch::load_tile_of_pair(scales + (1 + i) * kTileBytes, b_scales_[i], 0, b_tile_[i] + k,
                                    expert_, full);
        }
    }

  private:
    __device__ static const CUtensorMap* map_of(PairWeights matrix, const CUtensorMap& gate,
                                                const CUtensorMap& up, const CUtensorMap& down) {
        return matrix == PairWeights::Gate ? &gate : matrix == PairWeights::Up ? &up : &down;
    }

    const BlockScaledExpertMaps& maps_;
    SharedMemory& smem_;
    int32_t rank_;
    // Of the task whose blocks are being loaded.
    const CUtensorMap *a_ = nullptr, *b_ = nullptr, *a_scales_ = nullptr;
    const CUtensorMap* b_scales_[2] = {nullptr, nullptr};
    int32_t a_row_ = 0, b_row_ = 0, a_tile_ = 0, b_tile_[2] = {0, 0};
    int32_t expert_ = 0, k_blocks_ = 0;
    bool has_a_ = false;
};

// A stage's scales go to tensor memory and are read by its four products, one byte of each column
// by each; the next stage's copies wait for these (arch::copy_pair_scales).
class Products {
  public:
    static constexpr int kStages = block_scaled::kStages;

    __device__ explicit Products(SharedMemory& smem) : smem_(smem) {}
    __device__ static int32_t k_blocks(int32_t of_task) { return k_blocks_of(of_task); }
    __device__ static uint32_t sums(int i) { return i * kSecondAt; }
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
class Engine : public TensorMemoryEngine<kPair> {
  public:
    // 16 rows of a warp, as load_64_columns has them: [4 j + 2 h + c] is column 8 j + 2 (t % 4) +
    // c.
    static constexpr int kColumns = 32;
    using Columns = float[16];
    static_assert(kSharedColumns <= kColumns);

    __device__ Engine(SharedMemory& smem, int consumer)
        : TensorMemoryEngine<kPair>(smem, smem.blackwell.tensor, consumer),
          shared_empty_(arch::cluster_address(&smem.shared_empty, 0)) {}

    // Until a task's sums are there; `meanwhile` is called before.
    template <class Meanwhile>
    __device__ void begin(Meanwhile&& meanwhile) {
        meanwhile();
        await_sums();
        arch::umma_fence_after();
        const int warp = threadIdx.x % 128 / 32;
        sums_at_ = arch::tensor_address(tensor_.address, first_tensor_row(consumer_, warp),
                                        Products::sums(sums_.index));
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
        sync(consumer_);
    }

  private:
    __device__ void arrive_shared() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arch::pair_arrive(shared_empty_);
    }

    uint32_t shared_empty_;  // the first CTA's
    // Of the task at hand.
    uint32_t sums_at_ = 0, held_at_ = 0;
    Columns held_;
};

}  // namespace mok::kernels::block_scaled
