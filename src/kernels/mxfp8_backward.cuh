#pragma once

#include "kernels/backward_down_dgrad.cuh"
#include "kernels/mxfp8_params.h"
#include "kernels/mxfp8_results.cuh"
#include "kernels/mxfp8_rounding.cuh"
#include "kernels/mxfp8_unpack.cuh"

// What a backward in Mxfp8 does otherwise than one in BF16: it rounds operands in shared memory to
// what Mxfp8 keeps of them before it multiplies, and saved gate and up are Mxfp8.
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

// Saved gate and up as Mxfp8. A stage has 64 columns of each consumer's 64 rows where its BF16 rows
// will be: the elements of a row in 64 bytes.
class Mxfp8SavedRows {
  public:
    using SavedPair = uint32_t;
    static constexpr bool kWholeBlocks = false;

    __device__ explicit Mxfp8SavedRows(const Mxfp8BackwardParams& p)
        : p_(p), padded_(plan::fp8_padded(p.pass.problem.intermediate)) {}

    // A thread's elements, two j in a word, and the scales of its two rows' blocks of 32.
    struct Block {
        uint32_t gate_at[2][4], up_at[2][4];
        uint32_t gate_scale[2][2], up_scale[2][2];

        __device__ __forceinline__ uint32_t gate(int h, int j, uint32_t) const {
            return unpacked(gate_at[h][j / 2], j, gate_scale[h][j / 4]);
        }
        __device__ __forceinline__ uint32_t up(int h, int j, uint32_t) const {
            return unpacked(up_at[h][j / 2], j, up_scale[h][j / 4]);
        }

      private:
        __device__ static uint32_t unpacked(uint32_t word, int j, uint32_t scale) {
            return unpack_pair(j % 2 == 0 ? low_elements(word) : high_elements(word), scale);
        }
    };

    // The consumer's threads have read on return: what they make may take the place.
    template <class Engine>
    __device__ __forceinline__ Block read(const BackwardEntry& e, const uint8_t* stage, int32_t col,
                                          int consumer) const {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const Mxfp8GateUp& saved = at.kept ? p_.kept_saved : p_.ring_saved;
        const uint32_t base = arch::shared_address(stage) + consumer * 64 * 128;
        Block block;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = Fragment::row(h);
            const int64_t scale = scale_tile_index(at.row + 64 * consumer + r, col / Mxfp8::kBlock,
                                                   padded_ / Mxfp8::kBlock);
            two_scales(saved.gate.scales + scale, block.gate_scale[h]);
            two_scales(saved.up.scales + scale, block.up_scale[h]);
            const uint32_t row = base + r * 64 + Fragment::column();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                block.gate_at[h][i] = two_pairs(row + 16 * i);
                block.up_at[h][i] = two_pairs(row + 16 * i + kUpBytes);
            }
        }
        Engine::sync(consumer);
        return block;
    }

    // To rows of the ring; their scales too. Nobody reads the staging but these threads.
    template <class Engine, class Value>
    __device__ __forceinline__ void store(SharedMemory& smem, int consumer, Saved which,
                                          const BlockPlace& to, Value&& value) const {
        const Mxfp8Rows& rows = which == Saved::Gate ? p_.ring_saved.gate : p_.ring_saved.up;
        Engine::sync(consumer);  // each warp's first thread knows that its last stores have read
        save_block(smem.staging[consumer], {which, p_.activation, rows, padded_}, to.row, to.col,
                   value);
    }

  private:
    __device__ static uint32_t two_pairs(uint32_t address) {
        return arch::load_shared_half(address) |
               static_cast<uint32_t>(arch::load_shared_half(address + 8)) << 16;
    }
    // Two neighbours in a tile of scales; a Replay of this pass may have written them.
    __device__ static void two_scales(const Ue8m0* at, uint32_t (&scale)[2]) {
        const uint16_t both = *reinterpret_cast<const volatile uint16_t*>(at);
        scale[0] = scale_pair({static_cast<uint8_t>(both)});
        scale[1] = scale_pair({static_cast<uint8_t>(both >> 8)});
    }

    const Mxfp8BackwardParams& p_;
    int64_t padded_;
};

}  // namespace mok::kernels
