#pragma once

#include <limits>

#include "kernels/backward_layout.cuh"
#include "kernels/backward_products.cuh"

// One consumer's half of a DownDgrad tile behind its products d_hidden' = d_y Wd: with the saved
// gate and up of each element the router gradient's partial sums, d_gate, d_up and w * hidden; all
// three zero in padding rows.
namespace mok::kernels {

// Where a consumer's 64 rows x 64 columns go: the column and the first row in the matrix of a map.
struct BlockPlace {
    const CUtensorMap* map;
    int32_t col, row;
};

// Saved gate and up of rows: how DownDgrad finds a block of 64 columns of them in a stage, and how
// Replay stores one. (Mxfp8SavedRows: mxfp8_saved_rows.cuh.)
struct Bf16SavedRows {
    using SavedPair = uint32_t;                  // of two neighbours
    static constexpr bool kWholeBlocks = false;  // Replay stores 64 columns at a time
    struct Block {
        // Columns 8j + 2 (t % 4) and the next of row half h, a pair; `at`: its place in gate's
        // block.
        __device__ __forceinline__ uint32_t gate(int, int, uint32_t at) const {
            return arch::load_shared_word(at);
        }
        __device__ __forceinline__ uint32_t up(int, int, uint32_t at) const {
            return arch::load_shared_word(at + kUpBytes);
        }
    };
    template <class Engine>
    __device__ __forceinline__ Block read(const BackwardEntry&, const uint8_t*, int32_t,
                                          int) const {
        return {};
    }
    template <class Engine, class Value>
    __device__ __forceinline__ void store(SharedMemory& smem, int consumer, Saved,
                                          const BlockPlace& to, Value&& value) const {
        store_block<Engine>(smem, consumer, to.map, to.col, to.row, value);
    }
};

template <class Engine, class SavedRows>
class DownDgradTask {
  public:
    // Before the products: they hide the loads of the rows' weights and homes.
    __device__ __forceinline__ DownDgradTask(const BackwardParams& p, const BackwardEntry& e,
                                             const BackwardMaps& maps, BackwardSharedMemory& smem,
                                             int consumer, const SavedRows& saved)
        : p_(p), e_(e), maps_(maps), smem_(smem), consumer_(consumer), saved_(saved) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int32_t r = Engine::row_offset(consumer) + Fragment::row(h);
            weight_[h] = r < e.num_rows ? row_weight(r) : 0.0f;
            partials_[h] = partials_of(r);
        }
    }

    // The loader streams gate and up through the stages that follow in the ring.
    template <class Ring>
    __device__ __forceinline__ void end(float (&sum)[128], Ring& stage) {
        // Without limits the compiler drops all that belongs to them.
        constexpr float kUnlimited = std::numeric_limits<float>::infinity();
        if (p_.activation.limit == kUnlimited) {
            make_gradients({kUnlimited, p_.activation.alpha, p_.activation.beta}, sum, stage);
        } else {
            make_gradients(p_.activation, sum, stage);
        }
    }

  private:
    template <class Ring>
    __device__ __forceinline__ void make_gradients(const Activation& activation, float (&sum)[128],
                                                   Ring& stage) {
        const bool first = threadIdx.x % 128 == 0;
        const plan::Problem& problem = p_.pass.problem;
        const int32_t width = plan::width_of(problem, e_.shared);
        const int32_t parts = plan::gate_up_parts(problem, e_.shared);
        const int32_t num_blocks = gate_up_blocks(width, e_.part);
        const RowPlace to = row_place(p_.pass, e_, plan::RowBuffer::Operands, e_.begin);
        const RowMaps& rows = to.kept ? maps_.kept : maps_.ring;
        float partial[2] = {0.0f, 0.0f};
        uint32_t real[2];  // all bits, none in padding
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            real[h] = Engine::row_offset(consumer_) + Fragment::row(h) < e_.num_rows ? ~0u : 0u;
        }
        constexpr int kBatch = 8;  // pairs under way at once
        int previous = 0;
        // The block's sums are always the first: a loop in place of four copies of its body, which
        // would be fetched as instructions more slowly than they run.
#pragma unroll 1
        for (int block = 0; block < num_blocks; ++block) {
            arch::barrier_wait(&smem_.full[stage.index], stage.parity);
            uint8_t* const half = smem_.stage[stage.index] + consumer_ * 64 * 128;
            const uint32_t base =
                arch::shared_address(Engine::rows_of(smem_.stage[stage.index], consumer_));
            const typename SavedRows::Block saved = saved_.template read<Engine>(
                e_, smem_.stage[stage.index],
                e_.part * plan::kDownDgradCols + kGateUpBlockCols * block, consumer_);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int j0 = 0; j0 < 8; j0 += kBatch) {
                    uint32_t at[kBatch];
                    typename SavedRows::SavedPair gate[kBatch], up[kBatch];
                    DownDgradPair out[kBatch];
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        at[j] = base + Fragment::offset(Fragment::row(h), j0 + j);
                        gate[j] = saved.gate(h, j0 + j, at[j]);
                        up[j] = saved.up(h, j0 + j, at[j]);
                    }
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        const int i = 4 * (j0 + j) + 2 * h;
                        out[j] = down_dgrad_pair(activation, {sum[i], sum[i + 1]}, gate[j], up[j],
                                                 weight_[h], partial[h]);
                    }
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        arch::store_shared_word(at[j], out[j].d_gate & real[h]);
                        arch::store_shared_word(at[j] + kUpBytes, out[j].d_up & real[h]);
                        arch::store_shared_word(at[j] + kWHiddenBytes, out[j].w_hidden & real[h]);
                    }
                }
            }
            arch::fence_shared_to_copies();
            Engine::sync(consumer_);
            if (first) {
                const int32_t col = e_.part * plan::kDownDgradCols + block * kGateUpBlockCols;
                const int32_t row = to.row + 64 * consumer_;
                arch::store_tile(&rows.d_gate, col, row, 0, half);
                arch::store_tile(&rows.d_up, col, row, 0, half + kUpBytes);
                arch::store_tile(&rows.w_hidden, col, row, 0, half + kWHiddenBytes);
                arch::commit_stores();
                if (block > 0) {
                    arch::wait_stores_read<1>();
                    arch::barrier_arrive(&smem_.empty[previous]);
                }
            }
            if (block % 2 == 1 || block + 1 == num_blocks) {
                put_partials(2 * e_.part + block / 2, partial);
            }
            previous = stage.index;
            stage.advance();
#pragma unroll
            for (int i = 0; i < 96; ++i) sum[i] = sum[i + 32];
        }
        if (first) {
            arch::wait_stores_read<0>();
            arch::barrier_arrive(&smem_.empty[previous]);
        }
        if (e_.part == 0) down_bias_partials(parts);
    }

    // Where the `num` partial sums of a row's router gradient go: home, of the shared expert to the
    // token's; null: nowhere.
    __device__ __forceinline__ float* partials_of(int32_t r) const {
        const int32_t num = plan::gate_up_parts(p_.pass.problem, e_.shared) + 1;
        if (e_.shared) return p_.shared_router_partials + int64_t{e_.begin + r} * num;
        const plan::RouteTable& t = p_.pass.table;
        const int32_t home = t.slot_home[e_.begin + r];
        if (home < 0) return nullptr;
        return p_.peer_router_partials[home] + int64_t{t.slot_route[e_.begin + r]} * num;
    }

    __device__ __forceinline__ float row_weight(int32_t r) const {
        if (e_.shared) return p_.has_shared_weights ? p_.shared_weights[e_.begin + r] : 1.0f;
        const RowPlace at = row_place(p_.pass, e_, plan::RowBuffer::DY, e_.begin);
        return (at.kept ? p_.kept : p_.ring).row_weights[at.row + r];
    }

    // The sums of 128 columns: each thread's, then those of the four threads of a row.
    __device__ __forceinline__ void put_partials(int32_t column, float (&partial)[2]) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = partial[h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (threadIdx.x % 4 == 0 && partials_[h] != nullptr) partials_[h][column] = sum;
            partial[h] = 0.0f;
        }
    }

    // <d_y, down bias> of this half's rows, a warp a row; 0 where there is no bias.
    __device__ __forceinline__ void down_bias_partials(int32_t parts) {
        const int32_t lane = threadIdx.x % 32, hidden = p_.pass.problem.hidden;
        const int32_t begin = 64 * consumer_ + 16 * (threadIdx.x % 128 / 32);
        if (e_.shared || !p_.biases.down) {
            float* const own = lane < 16 ? partials_of(begin + lane) : nullptr;
            if (own != nullptr) own[parts] = 0.0f;
            return;
        }
        const RowPlace at = row_place(p_.pass, e_, plan::RowBuffer::DY, e_.begin);
        const Bf16* rows = (at.kept ? p_.kept : p_.ring).d_y + int64_t{at.row} * hidden;
        const Bf16* bias = p_.biases.down_at + int64_t{e_.expert} * hidden;
        for (int32_t r = begin; r < min(begin + 16, e_.num_rows); ++r) {
            const Bf16* row = rows + int64_t{r} * hidden;
            float sum = 0.0f;
            for (int32_t c = 2 * lane; c < hidden; c += 64) {
                const uint32_t d_y = *reinterpret_cast<const uint32_t*>(row + c);
                const uint32_t b = *reinterpret_cast<const uint32_t*>(bias + c);
                sum = fmaf(__uint_as_float(d_y << 16), __uint_as_float(b << 16), sum);
                sum =
                    fmaf(__uint_as_float(d_y & 0xffff0000u), __uint_as_float(b & 0xffff0000u), sum);
            }
            for (int distance = 1; distance < 32; distance *= 2) {
                sum += __shfl_xor_sync(~0u, sum, distance);
            }
            float* const own = partials_of(r);
            if (lane == 0 && own != nullptr) own[parts] = sum;
        }
    }

    const BackwardParams& p_;
    const BackwardEntry& e_;
    const BackwardMaps& maps_;
    BackwardSharedMemory& smem_;
    int consumer_;
    SavedRows saved_;
    float weight_[2];
    float* partials_[2];
};

}  // namespace mok::kernels
