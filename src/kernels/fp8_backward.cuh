#pragma once

#include "arch/wgmma_fp8.cuh"
#include "kernels/backward_down_dgrad.cuh"
#include "kernels/fp8_backward.h"
#include "kernels/fp8_elements.cuh"
#include "kernels/fp8_products.cuh"
#include "kernels/fp8_results.cuh"

// What a backward in Fp8Block does otherwise than one in BF16. Operands become elements in shared
// memory; sums of 128 along K are formed by the tensor cores from zero and added in FP32 with their
// scales:
//     sum = fma(partial, scale of A's row * scale of B's column, sum)
namespace mok::kernels {

class Fp8WgmmaEngine : public WgmmaEngine {
  public:
    __device__ Fp8WgmmaEngine(const Fp8BackwardParams& p, Fp8BackwardSharedMemory& smem,
                              int consumer)
        : WgmmaEngine(smem, {0, 1}, consumer), p_(p), all_(smem) {}

    // Before a task's sums.
    __device__ void begin(const BackwardEntry& e) {
        kind_ = e.kind;
        expert_ = e.expert;
        part_ = e.part;
    }

    // Products of E4M3, as the forward's to the bit; weights lie K-innermost whatever kB says.
    template <Major kA, Major kB, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t k_blocks, float (&sum)[128],
                                                    Beside&& beside) {
        static_assert(kA == Major::K);
        const bool two_matrices = kind_ == plan::TaskKind::GateUpDgrad;
        const int32_t of_matrix = two_matrices ? k_blocks / 2 : k_blocks;
        const fp8::Places places = fp8::places_of(consumer_);
#pragma unroll
        for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
        end_others(beside);
        float even[32], odd[32];
#pragma unroll 1
        for (int32_t k = 0; k < k_blocks;) {
            const int32_t k_block = k % of_matrix / 2;
            const float weight[2] = {weight_scale(k >= of_matrix, k_block, 0),
                                     weight_scale(k >= of_matrix, k_block, 1)};
            const StagePair stages = next_stages(of_matrix - k % of_matrix);
            make_row_elements(all_, consumer_, stages);
            arch::fence_shared_to_copies();
            arch::warpgroup_sync(1 + consumer_);
            fp8::StageRows at;
            const uint32_t a = arch::shared_address(smem_.stage[stages.first]);
#pragma unroll
            for (int step = 0; step < fp8::kTileK / 32; ++step) {
                arch::load_matrix_x4((a + places.a) ^ (step << 5), at.a[step]);
            }
            at.b = arch::k_major_descriptor(a + kABytes);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                at.scale[i][0] = row_scale(0) * weight[i];
                at.scale[i][1] = row_scale(1) * weight[i];
                arch::settle(at.scale[i]);
            }
            fp8::issue<0>(at, even);
            fp8::issue<1>(at, odd);
            arch::wgmma_wait<1>();
            fp8::add_scaled<0>(sum, even, at.scale[0]);
            fp8::issue<2>(at, even);
            arch::wgmma_wait<1>();
            fp8::add_scaled<1>(sum, odd, at.scale[0]);
            fp8::issue<3>(at, odd);
            arch::wgmma_wait<1>();
            fp8::add_scaled<2>(sum, even, at.scale[1]);
            arch::wgmma_wait<0>();
            fp8::add_scaled<3>(sum, odd, at.scale[1]);
            give_back(stages);
            k += stages.second < 0 ? 1 : 2;
        }
    }

    // Products of the elements as BF16 numbers, which lie K-outermost.
    template <Major kA, Major kB, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t k_blocks, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        static_assert(kA == Major::Outer && kB == Major::Outer);
#pragma unroll
        for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
        task.begin(sum);
        end_others(beside);
#pragma unroll 1
        for (int32_t k = 0; k < k_blocks; k += 2) {
            const StagePair stages = next_stages(k_blocks - k);
            for (int i = 0; i < 2 && stages.at(i) >= 0; ++i) {
                const uint32_t at = arch::shared_address(smem_.stage[stages.at(i)]);
                task.read(k + i, at + consumer_ * 64 * 128);
            }
            // The scales of the block before have been read.
            arch::group_sync<kConsumers * 128>(kBothConsumers);
            make_column_elements(all_, consumer_, stages);
            arch::fence_shared_to_copies();
            arch::group_sync<kConsumers * 128>(kBothConsumers);
            add_half<kA, kB, 0>(stages, sum);
            add_half<kA, kB, 1>(stages, sum);
            give_back(stages);
        }
    }

  private:
    static constexpr int kBothConsumers = 1 + kConsumers;  // behind those of a consumer each

    // All that goes on beside products, before them.
    template <class Beside>
    __device__ __forceinline__ void end_others(Beside&& beside) const {
        for (int32_t k = 0; k < 8; ++k) beside(k);
    }

    // The stages of the next block of 128 along K, when they have come, of which `left` stages are
    // left; back to the loader.
    __device__ __forceinline__ StagePair next_stages(int32_t left) {
        StagePair stages{next_stage(), -1};
        if (left >= 2) stages.second = next_stage();
        return stages;
    }
    __device__ __forceinline__ int next_stage() {
        const int index = stage_.index;
        arch::barrier_wait(&smem_.full[index], stage_.parity);
        stage_.advance();
        return index;
    }
    __device__ __forceinline__ void give_back(const StagePair& stages) const {
        if (threadIdx.x % 128 != 0) return;
        arch::barrier_arrive(&smem_.empty[stages.first]);
        if (stages.second >= 0) arch::barrier_arrive(&smem_.empty[stages.second]);
    }
    // Columns 128 kHalf on of a weight gradient's tile.
    template <Major kA, Major kB, int kHalf>
    __device__ __forceinline__ void add_half(const StagePair& stages, float (&sum)[128]) const {
        float partial[64];
#pragma unroll 1
        for (int i = 0; i < 2 && stages.at(i) >= 0; ++i) {
            arch::wgmma_fence();
            issue<kA, kB>(stages.at(i), kHalf, partial, i);
            arch::wgmma_commit();
            arch::wgmma_wait<0>();
        }
        arch::settle(partial);
        const float row[2] = {row_scale(0), row_scale(1)};
        const float* cols = all_.col_scale + 128 * kHalf + Fragment::column();
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float col[2] = {cols[8 * j], cols[8 * j + 1]};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& to = sum[64 * kHalf + 4 * j + i];
                to = fmaf(partial[4 * j + i], row[i / 2] * col[i % 2], to);
            }
        }
    }
    template <Major kA, Major kB>
    __device__ __forceinline__ void issue(int index, int half, float (&partial)[64],
                                          int accumulate) const {
        const uint32_t at = arch::shared_address(smem_.stage[index]);
        const uint64_t a_at = arch::operand_descriptor<kA>(at + consumer_ * 64 * 128);
        const uint64_t b_at = arch::operand_descriptor<kB>(at + kABytes + half * (kBBytes / 2));
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            arch::wgmma_m64n128k16<kA, kB>(partial, a_at + step * arch::kOperandStep<kA>,
                                           b_at + step * arch::kOperandStep<kB>,
                                           accumulate | (step != 0));
        }
    }

    __device__ __forceinline__ float row_scale(int h) const {
        return all_.row_scale[64 * consumer_ + Fragment::row(h)];
    }
    // Of the weights' block of k with columns 128 half on of the task's 256: of gate and up in
    // Replay, of up where is_second says so in GateUpDgrad.
    __device__ __forceinline__ float weight_scale(bool is_second, int32_t k_block, int half) const {
        const plan::Problem& problem = p_.pass.problem;
        const int32_t i_blocks = plan::ceil_div(problem.intermediate, 128);
        const int32_t h_blocks = plan::ceil_div(problem.hidden, 128);
        const int64_t first = int64_t{expert_} * i_blocks * h_blocks;
        const int32_t feature = 2 * part_ + half;
        switch (kind_) {
            case plan::TaskKind::Replay:
                return (half == 0 ? p_.gate_weight_scales
                                  : p_.up_weight_scales)[first + part_ * h_blocks + k_block];
            case plan::TaskKind::DownDgrad:
                if (feature >= i_blocks) return 0.0f;
                return p_.down_weight_scales[first + int64_t{k_block} * i_blocks + feature];
            default:
                if (feature >= h_blocks) return 0.0f;
                return (is_second
                            ? p_.up_weight_scales
                            : p_.gate_weight_scales)[first + int64_t{k_block} * h_blocks + feature];
        }
    }

    const Fp8BackwardParams& p_;
    Fp8BackwardSharedMemory& all_;
    plan::TaskKind kind_ = plan::TaskKind::Replay;
    int32_t expert_ = 0, part_ = 0;
};

// Saved gate and up as Fp8Block; in a stage as Mxfp8SavedRows has them.
class Fp8SavedRows {
  public:
    using SavedPair = Pair;
    static constexpr bool kWholeBlocks = true;

    __device__ Fp8SavedRows(const Fp8BackwardParams& p, const Fp8BackwardMaps& maps)
        : p_(p), maps_(maps), blocks_(plan::ceil_div(p.pass.problem.intermediate, 128)) {}

    // A thread's elements, two j in a word, and the scales of its two rows.
    struct Block {
        uint32_t gate_at[2][4], up_at[2][4];
        float gate_scale[2], up_scale[2];

        __device__ __forceinline__ Pair gate(int h, int j, uint32_t) const {
            return scaled(gate_at[h][j / 2], j, gate_scale[h]);
        }
        __device__ __forceinline__ Pair up(int h, int j, uint32_t) const {
            return scaled(up_at[h][j / 2], j, up_scale[h]);
        }

      private:
        __device__ static Pair scaled(uint32_t word, int j, float scale) {
            constexpr Ue8m0 kOne{127};
            const uint32_t elements = j % 2 == 0 ? low_elements(word) : high_elements(word);
            const Pair p = widened(multiply_pairs(small_pair(elements), lifted_scale_pair(kOne)));
            return {p.low * scale, p.high * scale};
        }
    };

    // The consumer's threads have read on return: what they make may take the place.
    template <class Engine>
    __device__ __forceinline__ Block read(const BackwardEntry& e, const uint8_t* stage, int32_t col,
                                          int consumer) const {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const Fp8GateUp& saved = at.kept ? p_.kept_saved : p_.ring_saved;
        const uint32_t base = arch::shared_address(stage) + consumer * 64 * 128;
        Block block;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = Fragment::row(h);
            const int64_t scale = scale_at(at.row, col / 128) + 64 * consumer + r;
            // A Replay of this pass may have written them.
            block.gate_scale[h] = *static_cast<const volatile float*>(saved.gate.scales + scale);
            block.up_scale[h] = *static_cast<const volatile float*>(saved.up.scales + scale);
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

    // Replay's sums to rows of the ring: 128 columns of gate and of up, a block each.
    template <class Engine>
    __device__ __forceinline__ void store_both(SharedMemory& smem, int consumer,
                                               const BackwardEntry& e, float (&sum)[128]) const {
        Engine::sync(consumer);  // each warp's first thread knows that its last stores have read
        const float limit = p_.activation.limit;
        const bool limited = limit != std::numeric_limits<float>::infinity();
        const int64_t scales = scale_at(e.ring_row, e.part) + 64 * consumer;
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            fp8::Pairs pair;
            const uint32_t size_mask = which == 0 ? ~0u : 0x7fffffffu;
#pragma unroll
            for (int k = 0; k < 32; ++k) {
                const int at = 4 * (k % 16) + 2 * (k / 16);
                pair[k] = packed_beside({sum[at], sum[at + 1]}, limit, [size_mask](float v) {
                    return __uint_as_float(__float_as_uint(v) & size_mask);
                });
            }
            const Fp8Rows& rows = which == 0 ? p_.ring_saved.gate : p_.ring_saved.up;
            const fp8::RowsTarget to{which == 0 ? &maps_.gate_store : &maps_.up_store,
                                     e.part * plan::kGateUpCols, e.ring_row + 64 * consumer,
                                     rows.scales + scales};
            if (limited) {
                const Saved saved = which == 0 ? Saved::Gate : Saved::Up;
                fp8::store_rows(smem.staging[consumer], to, pair,
                                fp8::OwnSides{saved, p_.activation});
            } else {
                fp8::store_rows(smem.staging[consumer], to, pair, fp8::NoSides{});
            }
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] = sum[64 + i];
        }
    }

  private:
    // Of the first row of a tile that begins at `row`, by tile.
    __device__ int64_t scale_at(int32_t row, int32_t block) const {
        return int64_t{row} * blocks_ + block * plan::kTileRows;
    }
    __device__ static uint32_t two_pairs(uint32_t address) {
        return arch::load_shared_half(address) |
               static_cast<uint32_t>(arch::load_shared_half(address + 8)) << 16;
    }

    const Fp8BackwardParams& p_;
    const Fp8BackwardMaps& maps_;
    int32_t blocks_;
};

}  // namespace mok::kernels
