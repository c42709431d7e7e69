#pragma once

#include "arch/wgmma_fp8.cuh"
#include "kernels/backward_down_dgrad.cuh"
#include "kernels/fp8_products.cuh"
#include "kernels/fp8_results.cuh"
#include "kernels/fp8_units.cuh"

// What a backward in Fp8Block does otherwise than one in BF16. Sums of 128 along K are formed by
// the tensor cores from zero and added in FP32 with their scales:
//     sum = fma(partial, scale of A's row * scale of B's column, sum)
namespace mok::kernels {

// The scales of a chunk's columns that this thread needs, two neighbours of every eight, read a few
// ahead of their use: the first ones while the chunk's products are under way.
template <int kChunk>
class ColumnScales {
  public:
    // cols: where those of the block's first two columns lie.
    __device__ __forceinline__ explicit ColumnScales(uint32_t cols) : cols_(cols) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) read(j);
    }
    // Of columns 8 j and the next; j rises by one.
    __device__ __forceinline__ uint2 take(int j) {
        const uint2 both = ahead_[j % kAhead];
        if (j + kAhead < fp8::kChunkCols / 8) read(j + kAhead);
        return both;
    }

  private:
    static constexpr int kAhead = 4;

    __device__ __forceinline__ void read(int j) {
        ahead_[j % kAhead] =
            arch::load_shared_words(cols_ + (fp8::kChunkCols * kChunk + 8 * j) * 4);
    }

    uint32_t cols_;
    uint2 ahead_[kAhead];
};

// sum's columns of a chunk += partial * row scale * column scale, of which scales are multiplied
// first.
template <int kChunk>
__device__ __forceinline__ void add_scaled_columns(float (&sum)[128], float (&partial)[64],
                                                   const float (&row)[2],
                                                   ColumnScales<kChunk>& scales) {
    arch::settle(partial);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        const uint2 both = scales.take(j);
        const float col[2] = {__uint_as_float(both.x), __uint_as_float(both.y)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& to = sum[64 * kChunk + 4 * j + i];
            to = fmaf(partial[4 * j + i], row[i / 2] * col[i % 2], to);
        }
    }
}

class Fp8WgmmaEngine : public WgmmaEngine {
  public:
    __device__ Fp8WgmmaEngine(const Fp8BackwardParams& p, Fp8BackwardSharedMemory& smem,
                              int consumer)
        : WgmmaEngine(smem, {0, 1}, consumer), p_(p), all_(smem) {}

    // Before a task's sums.
    __device__ __forceinline__ void begin(const BackwardEntry& e) {
        kind_ = e.kind;
        expert_ = e.expert;
        part_ = e.part;
        row_ = e.at.row;
        ring_row_ = e.ring_row;
        num_rows_ = e.num_rows;
        operand_ = static_cast<Operand>(e.piece);
        takes_turns_ = e.k_blocks > kStages && (plan::is_wgrad(e.kind) || e.num_rows > 64);
    }

    // A task without rows; a unit, which is one.
    __device__ __forceinline__ void pass_over(int32_t k_blocks, int32_t other_stages) {
        if (kind_ != kUnitTask) return WgmmaEngine::pass_over(k_blocks, other_stages);
        // The last task's stores have read the staging, as each warp's first thread knows.
        sync(consumer_);
        UnitTask task(p_, {operand_, part_, k_blocks, ring_row_, row_}, smem_, consumer_);
        task.run([&] { return next_stage(); }, [&](int index) { give_back(index); });
    }

    // Products of E4M3 with weights, as the forward's to the bit. kB names the product as it is in
    // BF16: Major::K is Replay's, whose rows are BF16; weights lie K-innermost in any case.
    template <Major kA, Major kB, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t k_blocks, float (&sum)[128],
                                                    Beside&& beside) {
        static_assert(kA == Major::K);
        const auto others = [&] { end_others(beside); };
        if constexpr (kB == Major::K) {
            multiply_replayed(k_blocks, sum, others);
        } else {
            multiply_rows(k_blocks, sum, others);
        }
    }

    // Products of E4M3 by slots. Before them the bias gradient reads its rows.
    template <Major kA, Major kB, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t k_blocks, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        static_assert(kA == Major::Outer && kB == Major::Outer);
        if (task.reads_blocks()) {
            end_others(beside);  // the loader may need the last task's stage for them
            read_bias_rows(task);
        }
#pragma unroll
        for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
        task.begin(sum);
        if (k_blocks == 0) return;
        const fp8::Turns turns(consumer_, takes_turns_);
        turns.begin();
        // Two rounds of one loop, as of products with weights.
        int32_t k = 0;
#pragma unroll 1
        for (int32_t end = min(k_blocks, 2); k < k_blocks; end = k_blocks) {
#pragma unroll 1
            for (; k < end; ++k) add_block(turns, k == 0, sum);
            end_others(beside);
        }
    }

  private:
    // Products with weights of rows that units have quantised, as the forward's (fp8_products.cuh).
    // `others` go on behind the second block: they hold the consumer's warps together, so these
    // must come to them at one place.
    template <class Others>
    __device__ __forceinline__ void multiply_rows(int32_t k_blocks, float (&sum)[128],
                                                  Others&& others) {
        const uint32_t row = fp8::row_place(consumer_);
#pragma unroll
        for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
        float partial[64];
        const fp8::Turns turns(consumer_, takes_turns_);
        turns.begin();
        int32_t k = 0;
#pragma unroll 1
        for (int32_t end = min(k_blocks, 2); k < k_blocks; end = k_blocks) {
#pragma unroll 1
            for (; k < end; ++k) {
                const int index = next_stage();
                const fp8::StageOperands at = fp8::operands_of_stage(smem_.stage[index], consumer_);
                fp8::issue<0>(at, partial);
                const fp8::BlockScales scales =
                    fp8::read_scales(arch::shared_address(all_.stage_scales[index]) + row,
                                     arch::shared_address(all_.weight_scales(index)));
                arch::wgmma_wait<0>();
                if (k == 0) turns.hand_on();
                fp8::add_scaled<0>(sum, partial, scales.of_chunk[0]);
                fp8::issue<1>(at, partial);
                arch::wgmma_wait<0>();
                give_back(index);
                fp8::add_scaled<1>(sum, partial, scales.of_chunk[1]);
            }
            others();
        }
    }

    // A block of 128 slots.
    __device__ __forceinline__ void add_block(const fp8::Turns& turns, bool first,
                                              float (&sum)[128]) {
        const int index = next_stage();
        const fp8::StageOperands at = fp8::operands_of_stage(smem_.stage[index], consumer_);
        float partial[64];
        fp8::issue<0>(at, partial);
        const uint32_t rows =
            arch::shared_address(all_.column_scales(index)) + fp8::row_place(consumer_);
        const float row[2] = {__uint_as_float(arch::load_shared_word(rows)),
                              __uint_as_float(arch::load_shared_word(rows + 8 * 4))};
        const uint32_t cols =
            arch::shared_address(all_.stage_scales[index]) + Fragment::column() * 4;
        ColumnScales<0> left(cols);
        arch::wgmma_wait<0>();
        if (first) turns.hand_on();
        add_scaled_columns(sum, partial, row, left);
        fp8::issue<1>(at, partial);
        ColumnScales<1> right(cols);
        arch::wgmma_wait<0>();
        add_scaled_columns(sum, partial, row, right);
        // All threads have read the scales of columns.
        sync(consumer_);
        give_back(index);
    }

    template <class Task>
    __device__ __forceinline__ void read_bias_rows(Task& task) {
#pragma unroll 1
        for (int32_t k = 0; k * kTileK < num_rows_; ++k) {
            const int index = next_stage();
            task.read(k, arch::shared_address(smem_.stage[index]) + consumer_ * 64 * 128);
            give_back(index);
        }
    }

    // Replay: x is quantised in registers of the threads that load it, two a row, one for each of a
    // block's stages: 128 elements a row in the first stage's rows, swizzled as BF16 is.
    template <class Others>
    __device__ __forceinline__ void multiply_replayed(int32_t k_blocks, float (&sum)[128],
                                                      Others&& others) {
#pragma unroll
        for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
        others();
        float partial[64];
#pragma unroll 1
        for (int32_t k = 0; k < k_blocks; k += 2) {
            StagePair stages{next_stage(), -1};
            if (k + 1 < k_blocks) stages.second = next_stage();
            const float weight[2] = {__ldg(replayed_scales(p_.gate_weight_scales) + k / 2),
                                     __ldg(replayed_scales(p_.up_weight_scales) + k / 2)};
            const float scale = make_row_elements(stages);
            arch::fence_shared_to_copies();
            sync(consumer_);
            const fp8::StageOperands at =
                fp8::operands_of_stage(smem_.stage[stages.first], consumer_);
            fp8::issue<0>(at, partial);
            // A row's scale is where its two threads are.
            const int lane = threadIdx.x % 32;
            const float row[2] = {__shfl_sync(~0u, scale, lane / 4 * 2),
                                  __shfl_sync(~0u, scale, lane / 4 * 2 + 16)};
            const float of_gate[2] = {row[0] * weight[0], row[1] * weight[0]};
            const float of_up[2] = {row[0] * weight[1], row[1] * weight[1]};
            arch::wgmma_wait<0>();
            fp8::add_scaled<0>(sum, partial, of_gate);
            fp8::issue<1>(at, partial);
            arch::wgmma_wait<0>();
            fp8::add_scaled<1>(sum, partial, of_up);
            give_back(stages.first);
            if (stages.second >= 0) give_back(stages.second);
        }
    }
    __device__ const float* replayed_scales(const float* scales) const {
        const int64_t i_blocks = plan::ceil_div(p_.pass.problem.intermediate, 128);
        return scales + (expert_ * i_blocks + part_) * plan::ceil_div(p_.pass.problem.hidden, 128);
    }
    // Returns the scale of the thread's row. Elements behind K's end are zero.
    __device__ __forceinline__ float make_row_elements(const StagePair& stages) const {
        const int half = RowPairs::half();
        const bool has = stages.at(half) >= 0;
        const uint32_t offset = consumer_ * 64 * 128;
        const auto rows = [&](int stage) {
            return arch::shared_address(smem_.stage[stage]) + offset;
        };
        RowPairs pairs;
        // read() looks for the other half one A further on.
        pairs.read(rows(has ? stages.at(half) : stages.first) - half * kABytes);
        if (!has) {
#pragma unroll
            for (uint32_t& p : pairs.at) p = 0;
        }
        // Both threads of a row have read: amax is a shuffle.
        return stage_row_elements(rows(stages.first), pairs);
    }

    // All that goes on beside products.
    template <class Beside>
    __device__ __forceinline__ void end_others(Beside&& beside) const {
        for (int32_t k = 0; k < 8; ++k) beside(k);
    }
    __device__ __forceinline__ int next_stage() {
        const int index = stage_.index;
        arch::barrier_wait(&smem_.full[index], stage_.parity);
        stage_.advance();
        return index;
    }
    // By the thread that the consumer's others have met, or that products hold together with them.
    __device__ __forceinline__ void give_back(int index) const {
        if (threadIdx.x % 128 == 0) arch::barrier_arrive(&smem_.empty[index]);
    }

    const Fp8BackwardParams& p_;
    Fp8BackwardSharedMemory& all_;
    plan::TaskKind kind_ = plan::TaskKind::Replay;
    int32_t expert_ = 0, part_ = 0, row_ = 0, ring_row_ = 0, num_rows_ = 0;
    bool takes_turns_ = false;
    Operand operand_ = Operand::DY;
};

// Saved gate and up as Fp8Block; in a stage as Mxfp8SavedRows has them.
class Fp8SavedRows {
  public:
    using SavedPair = Pair;
    static constexpr bool kWholeBlocks = true;

    __device__ Fp8SavedRows(const Fp8BackwardParams& p, Fp8BackwardSharedMemory& smem)
        : p_(p), smem_(smem), blocks_(plan::ceil_div(p.pass.problem.intermediate, 128)) {}

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
    __device__ __forceinline__ Block read(const BackwardEntry&, const uint8_t* stage, int32_t,
                                          int consumer) const {
        const int index = static_cast<int>(stage - smem_.stage[0]) / kStageBytes;
        const uint32_t scales = arch::shared_address(smem_.stage_scales[index]);
        const uint32_t base = arch::shared_address(stage) + consumer * 64 * 128;
        Block block;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = Fragment::row(h);
            const uint32_t scale = scales + (64 * consumer + r) * 4;
            block.gate_scale[h] = __uint_as_float(arch::load_shared_word(scale));
            block.up_scale[h] =
                __uint_as_float(arch::load_shared_word(scale + plan::kTileRows * 4));
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
            const int64_t first = e.ring_row + 64 * consumer, row_bytes = int64_t{blocks_} * 128;
            const fp8::RowsTarget to{rows.elements + first * row_bytes + e.part * plan::kGateUpCols,
                                     row_bytes, rows.scales + scales};
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
    Fp8BackwardSharedMemory& smem_;
    int32_t blocks_;
};

}  // namespace mok::kernels
