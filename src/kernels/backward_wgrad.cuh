#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/backward_products.cuh"

// One consumer's half of a weight gradient's tile: 64 rows x 256 columns, and where column part 0
// is worked on the bias gradient of its rows.
namespace mok::kernels {

template <class Engine>
class WgradTask {
  public:
    __device__ __forceinline__ WgradTask(const BackwardParams& p, const BackwardEntry& e,
                                         BackwardSharedMemory& smem, int consumer)
        : p_(p), e_(e), smem_(smem), consumer_(consumer), target_(wgrad_target(p, e)) {
        row_ = e.at.row + Engine::row_offset(consumer);
        bias_row_ = e.at.row + 64 * consumer;
        col_ = e.at.col;
        if (e.has_bias) begin_bias();
    }

    __device__ __forceinline__ bool continues() const { return wgrad_continues(e_, target_); }
    // What they go on from, else nothing; without a branch.
    __device__ __forceinline__ void begin(float (&sum)[128]) const {
        const float* at = p_.wgrad_scratch + target_.scratch;
        int64_t stride = target_.cols;
        if (!e_.continues) {
            at = static_cast<const float*>(target_.matrix.data) + expert_offset();
            stride = target_.matrix.row_stride;
        }
        const int32_t col = col_ + Fragment::column();
        const int32_t left = continues() ? target_.cols - col : 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int32_t row = row_ + Fragment::row(h), cols = row < target_.rows ? left : 0;
            const float* from = at + row * stride + col;
            for_each_constant<32>([&](auto j) {
                const int i = 4 * j + 2 * h;
                arch::load_pair_below<8 * j>(from, cols, sum[i], sum[i + 1]);
            });
        }
    }

    // The bias gradient's share of a block of 64 slots, in slot order: this thread's column of A.
    __device__ __forceinline__ bool reads_blocks() const {
        return e_.has_bias;
    }
    __device__ __forceinline__ void read(int32_t k, uint32_t a) {
        if (!reads_blocks()) return;
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
        // The stage is given back by thread 0.
        arch::warpgroup_sync(1 + consumer_);
    }

    // To the scratch, or with the old gradient to the caller's; FP32 through the stage that the
    // loader left empty, which its tile stores may still read on return. Nobody else uses the
    // staging.
    __device__ __forceinline__ void end(float (&sum)[128], const CUtensorMap* map, int stage) {
        if (e_.has_bias) end_bias();
        if (e_.stores && e_.mode == GradMode::Accumulate) add_old(sum);
        if (!e_.ends) {
            save(sum);
        } else if (e_.by_stage) {
            store_f32(sum, map, stage);
        } else if (e_.stores) {
            store_bf16(sum);
        }
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

    // The partial sums of a piece that does not end.
    __device__ __forceinline__ void save(const float (&sum)[128]) const {
        float* at = p_.wgrad_scratch + target_.scratch;
        for_each_pair(at, target_.cols, [&](int i, float* pair, bool inside) {
            if (inside) *reinterpret_cast<float2*>(pair) = {sum[i], sum[i + 1]};
        });
    }

    // Eight blocks of 64 rows x 128 bytes through four buffers, this consumer's three of the stage
    // and then its staging, by every warp for its own 16 rows: a block is filled while the copy
    // engine reads those before it.
    __device__ __forceinline__ void store_f32(const float (&sum)[128], const CUtensorMap* map,
                                              int stage) const {
        constexpr int kBuffers = kStageBlocks + 1, kBlocks = 8, kWarpRows = kGradientBoxRows;
        const int warp = threadIdx.x % 128 / 32;
        const bool first = threadIdx.x % 32 == 0;
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
            const int buffer = i % kBuffers;
            uint8_t* block =
                buffer == kStageBlocks
                    ? smem_.staging[consumer_]
                    : smem_.stage[stage] + (consumer_ * kStageBlocks + buffer) * kStagingBytes;
            if (i >= kBuffers) {
                if (first) arch::wait_stores_read<kBuffers - 1>();
                __syncwarp();
            }
            stage_f32_block(block, [&](int j, int h) -> Pair {
                const int at = 4 * (4 * i + j) + 2 * h;
                return {sum[at], sum[at + 1]};
            });
            arch::fence_shared_to_copies();
            __syncwarp();
            if (first) {
                arch::store_tile_once(map, col_ + 32 * i, row_ + kWarpRows * warp, e_.expert,
                                      block + kWarpRows * warp * 128);
                arch::commit_stores();
            }
        }
    }
    __device__ __forceinline__ void store_bf16(const float (&sum)[128]) const {
        const WeightGradient& g = target_.matrix;
        const int32_t col = col_ + 8 * (threadIdx.x % 8);
        Bf16* matrix = static_cast<Bf16*>(g.data) + expert_offset() + col;
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            const auto value = [&](int j, int h) {
                const int at = 4 * (8 * block + j) + 2 * h;
                return packed({sum[at], sum[at + 1]});
            };
            put_block(smem_.staging[consumer_], value, [&](int i, int4 chunk) {
                const int32_t row = row_ + block_row(i);
                if (row < target_.rows && col + 64 * block < target_.cols) {
                    *reinterpret_cast<int4*>(matrix + row * g.row_stride + 64 * block) = chunk;
                }
            });
        }
    }

    // ---- The bias: thread t < 64 owns row bias_row_ + t
    // ----------------------------------------------
    __device__ __forceinline__ bool owns_bias_row() const {
        return threadIdx.x % 128 < 64 && bias_row_ + threadIdx.x % 128 < target_.rows;
    }
    __device__ __forceinline__ int64_t bias_at() const {
        return int64_t{e_.expert} * target_.bias.expert_stride + bias_row_ + threadIdx.x % 128;
    }
    __device__ __forceinline__ float old_bias() const {
        return target_.bias.is_bf16 ? to_f32(static_cast<const Bf16*>(target_.bias.data)[bias_at()])
                                    : static_cast<const float*>(target_.bias.data)[bias_at()];
    }
    __device__ __forceinline__ float* bias_scratch() const {
        return p_.wgrad_scratch + target_.bias_scratch + bias_row_ + threadIdx.x % 128;
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
    int32_t row_, bias_row_, col_;
    float bias_ = 0.0f;
};

}  // namespace mok::kernels
