#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/backward_products.cuh"

// One consumer's half of a weight gradient's tile: 64 rows x 256 columns, and where column part 0
// is worked on the bias gradient of its rows.
namespace mok::kernels {

class WgradTask {
  public:
    __device__ __forceinline__ WgradTask(const BackwardParams& p, const BackwardEntry& e,
                                         BackwardSharedMemory& smem, int consumer)
        : p_(p), e_(e), smem_(smem), consumer_(consumer), target_(wgrad_target(p, e)) {
        row_ = e.at.row + 64 * consumer;
        col_ = e.at.col;
        if (e.has_bias) begin_bias();
    }

    // Whether the sums go on from the expert's previous piece or, Chain, from the old gradient.
    __device__ __forceinline__ bool continues() const {
        return e_.continues || (e_.mode == GradMode::Chain && target_.matrix.wanted);
    }
    // What they go on from, else nothing. Without a branch: ptxas would not let the products
    // overlap (C7515).
    __device__ __forceinline__ void begin(float (&sum)[128]) const {
        const bool there = continues();
        const float* at = p_.wgrad_scratch + target_.scratch;
        int64_t stride = target_.cols;
        if (there && !e_.continues) {
            at = static_cast<const float*>(target_.matrix.data) + expert_offset();
            stride = target_.matrix.row_stride;
        }
        for_each_pair(at, stride, [&](int i, const float* pair, bool inside) {
            arch::load_pair_if(pair, there && inside, sum[i], sum[i + 1]);
        });
    }

    // The bias gradient's share of a block of 64 slots, in slot order: this thread's column of A.
    __device__ __forceinline__ void add_to_bias(int32_t k, uint32_t a) {
        if (!e_.has_bias) return;
        const int thread = threadIdx.x % 128;
        if (thread < 64) {
            const bool weighted = e_.kind == plan::TaskKind::DownWgrad;
            const RowPlace at = row_place(p_.pass, e_, plan::RowBuffer::DY, e_.begin + k * kTileK);
            const float* weights = (at.kept ? p_.kept : p_.ring).row_weights + at.row;
            const int32_t rows = min(kTileK, e_.num_rows - k * kTileK);
            for (int32_t i = 0; i < rows; ++i) {
                const uint32_t from =
                    a + i * 128 + (((thread / 8) ^ (i & 7)) << 4) + thread % 8 * 2;
                const float v =
                    __uint_as_float(static_cast<uint32_t>(arch::load_shared_half(from)) << 16);
                bias_ = weighted ? fmaf(weights[i], v, bias_) : bias_ + v;
            }
        }
        // The next block's barrier gives the stage back, by thread 0.
        arch::warpgroup_sync(1 + consumer_);
    }

    // To the scratch, or with the old gradient to the caller's, through the stage that the loader
    // left empty; its tile stores may still read the stage on return.
    __device__ __forceinline__ void end(float (&sum)[128], const CUtensorMap* map, int stage) {
        if (e_.has_bias) end_bias();
        if (!e_.ends) {
            float* at = p_.wgrad_scratch + target_.scratch;
            for_each_pair(at, target_.cols, [&](int i, float* pair, bool inside) {
                if (inside) *reinterpret_cast<float2*>(pair) = {sum[i], sum[i + 1]};
            });
        } else if (e_.stores) {
            if (e_.mode == GradMode::Accumulate) add_old(sum);
            if (e_.is_bf16) {
                store_bf16(sum, map, stage);
            } else {
                store_f32(sum, map, stage);
            }
        }
        // Ordinary stores of all threads, before the first one ends the task.
        if (e_.has_bias || !e_.ends) arch::warpgroup_sync(1 + consumer_);
    }

  private:
    __device__ __forceinline__ int64_t expert_offset() const {
        return int64_t{e_.expert} * target_.matrix.expert_stride;
    }
    // Calls visit(i, address, inside) for the pairs sum[i], sum[i + 1] of a matrix [rows, cols]:
    // inside, where they lie in the gradient.
    template <class Element, class Visit>
    __device__ __forceinline__ void for_each_pair(Element* matrix, int64_t stride,
                                                  Visit&& visit) const {
        const int32_t col = col_ + Fragment::column(), left = target_.cols - col;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int32_t row = row_ + Fragment::row(h);
            Element* at = matrix + row * stride + col;
            const int32_t cols = row < target_.rows ? left : 0;
#pragma unroll
            for (int j = 0; j < 32; ++j) visit(4 * j + 2 * h, at + 8 * j, 8 * j < cols);
        }
    }

    // sum = old + sum: one addition; the store rounds once.
    __device__ __forceinline__ void add_old(float (&sum)[128]) const {
        const WeightGradient& g = target_.matrix;
        if (g.is_bf16) {
            const Bf16* at = static_cast<const Bf16*>(g.data) + expert_offset();
            for_each_pair(at, g.row_stride, [&](int i, const Bf16* pair, bool inside) {
                if (!inside) return;
                const uint32_t old = *reinterpret_cast<const uint32_t*>(pair);
                sum[i] = __uint_as_float(old << 16) + sum[i];
                sum[i + 1] = __uint_as_float(old & 0xffff0000u) + sum[i + 1];
            });
            return;
        }
        const float* at = static_cast<const float*>(g.data) + expert_offset();
        for_each_pair(at, g.row_stride, [&](int i, const float* pair, bool inside) {
            if (!inside) return;
            const float2 old = *reinterpret_cast<const float2*>(pair);
            sum[i] = old.x + sum[i];
            sum[i + 1] = old.y + sum[i + 1];
        });
    }

    // Block i < 4 of 64 rows x 128 bytes of this consumer, on its way out.
    __device__ __forceinline__ uint8_t* out_block(int stage, int i) const {
        if (i == kStageBlocks) return smem_.staging[consumer_];
        return smem_.stage[stage] + (consumer_ * kStageBlocks + i) * kStagingBytes;
    }
    // Fills four blocks, then hands them to the copy engine.
    template <class Fill>
    __device__ __forceinline__ void store_blocks(int stage, const CUtensorMap* map, int32_t col,
                                                 int32_t cols, Fill&& fill) const {
        static_assert(kStageBlocks == 3);
#pragma unroll
        for (int i = 0; i < 4; ++i) fill(i, out_block(stage, i));
        arch::fence_shared_to_copies();
        arch::warpgroup_sync(1 + consumer_);
        if (threadIdx.x % 128 == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                arch::store_tile(map, col + i * cols, row_, e_.expert, out_block(stage, i));
            }
            arch::commit_stores();
        }
    }
    __device__ __forceinline__ void store_f32(float (&sum)[128], const CUtensorMap* map,
                                              int stage) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half > 0) {
                if (threadIdx.x % 128 == 0) arch::wait_stores_read<0>();
                arch::warpgroup_sync(1 + consumer_);
            }
            store_blocks(stage, map, col_ + 128 * half, 32, [&](int i, uint8_t* block) {
                stage_f32_block(block, [&](int j, int h) -> Pair {
                    const int at = 4 * (16 * half + 4 * i + j) + 2 * h;
                    return {sum[at], sum[at + 1]};
                });
            });
        }
    }
    __device__ __forceinline__ void store_bf16(float (&sum)[128], const CUtensorMap* map,
                                               int stage) const {
        store_blocks(stage, map, col_, 64, [&](int i, uint8_t* block) {
            stage_block(block, [&](int j, int h) {
                const int at = 4 * (8 * i + j) + 2 * h;
                return packed({sum[at], sum[at + 1]});
            });
        });
    }

    // ---- The bias: thread t < 64 owns row row_ + t ----------------------------------------------
    __device__ __forceinline__ bool owns_bias_row() const {
        return threadIdx.x % 128 < 64 && row_ + threadIdx.x % 128 < target_.rows;
    }
    __device__ __forceinline__ int64_t bias_at() const {
        return int64_t{e_.expert} * target_.bias.expert_stride + row_ + threadIdx.x % 128;
    }
    __device__ __forceinline__ float old_bias() const {
        return target_.bias.is_bf16 ? to_f32(static_cast<const Bf16*>(target_.bias.data)[bias_at()])
                                    : static_cast<const float*>(target_.bias.data)[bias_at()];
    }
    __device__ __forceinline__ float* bias_scratch() const {
        return p_.wgrad_scratch + target_.bias_scratch + row_ + threadIdx.x % 128;
    }
    __device__ __forceinline__ void begin_bias() {
        bias_ = 0.0f;
        if (!owns_bias_row()) return;
        if (e_.continues) {
            bias_ = *bias_scratch();
        } else if (e_.mode == GradMode::Chain) {
            bias_ = old_bias();
        }
    }
    __device__ __forceinline__ void end_bias() const {
        if (!owns_bias_row()) return;
        if (!e_.ends) {
            *bias_scratch() = bias_;
            return;
        }
        const float sum = e_.mode == GradMode::Accumulate ? old_bias() + bias_ : bias_;
        if (target_.bias.is_bf16) {
            static_cast<Bf16*>(target_.bias.data)[bias_at()] = to_bf16(sum);
        } else {
            static_cast<float*>(target_.bias.data)[bias_at()] = sum;
        }
    }

    const BackwardParams& p_;
    const BackwardEntry& e_;
    BackwardSharedMemory& smem_;
    int consumer_;
    WgradTarget target_;
    int32_t row_, col_;
    float bias_ = 0.0f;
};

}  // namespace mok::kernels
