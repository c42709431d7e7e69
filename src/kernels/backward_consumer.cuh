#pragma once

#include <limits>

#include "kernels/backward_layout.cuh"
#include "kernels/backward_products.cuh"
#include "kernels/backward_wgrad.cuh"

// The consumer role of a backward: as the forward's, two warpgroups of 64 rows of the tile each.
namespace mok::kernels {

class BackwardConsumer {
  public:
    __device__ __forceinline__ BackwardConsumer(const BackwardParams& p, const BackwardMaps& routed,
                                                const BackwardMaps& shared,
                                                BackwardSharedMemory& smem, int index)
        : p_(p), routed_(routed), shared_(shared), smem_(smem), index_(index) {}

    __device__ __forceinline__ void run() {
        while (true) {
            // A finished tile's stores complete while the next tile multiplies; with no next tile
            // at hand they are awaited first, for another CTA may be waiting.
            if (!arch::barrier_try_wait(&smem_.entry_full[entry_.index], entry_.parity)) {
                end_last_task();
                arch::barrier_wait(&smem_.entry_full[entry_.index], entry_.parity);
            }
            const BackwardEntry e = smem_.entries[entry_.index];
            if (!e.more) break;
            if (p_.traced && first() && index_ == 0) {
                smem_.times[entry_.index].begin = arch::nanoseconds();
            }
            switch (has_rows(e) ? e.kind : kNothing) {
                case kNothing:
                    pass_over(e);
                    break;
                case plan::TaskKind::Replay:
                    replay(e);
                    break;
                case plan::TaskKind::DownDgrad:
                    down_dgrad(e);
                    break;
                case plan::TaskKind::GateUpDgrad:
                    gate_up_dgrad(e);
                    break;
                default:
                    wgrad(e);
            }
            __syncwarp();
            last_ = entry_.index;
            arch::barrier_arrive(&smem_.entry_empty[entry_.index]);
            entry_.advance();
        }
        end_last_task();
    }

  private:
    __device__ __forceinline__ bool first() const { return threadIdx.x % 128 == 0; }
    __device__ __forceinline__ const BackwardMaps& maps(const BackwardEntry& e) const {
        return e.shared ? shared_ : routed_;
    }

    __device__ __forceinline__ bool first_of_warp() const { return threadIdx.x % 32 == 0; }
    // Gives the stage back that a wgrad's tile stores read, all but each warp's last, when they
    // have. The warpgroup calls it.
    __device__ __forceinline__ void give_owed_stage() {
        if (owed_stage_ < 0) return;
        if (first_of_warp()) arch::wait_stores_read<1>();
        arch::warpgroup_sync(1 + index_);
        if (first()) arch::barrier_arrive(&smem_.empty[owed_stage_]);
        owed_stage_ = -1;
    }
    // Each warp for itself: its first thread's tile stores of the last task are complete, and the
    // teller may say so. Ordinary stores of other threads lie behind a barrier of the warp.
    __device__ __forceinline__ void end_last_task() {
        if (first_of_warp() && last_ >= 0) {
            arch::wait_stores_done();
            arch::barrier_arrive(&smem_.entry_done[last_]);
        }
        last_ = -1;
    }
    // What goes on while the tensor core works. By kGiveStageAt the last task's stores have read
    // the stage that they leave by, and the loader has not yet come to it; by kEndLastAt they are
    // complete.
    static constexpr int32_t kGiveStageAt = 1, kEndLastAt = 5;
    __device__ __forceinline__ void beside(int32_t k) {
        if (k == kGiveStageAt) give_owed_stage();
        if (k == kEndLastAt) end_last_task();
    }
    __device__ __forceinline__ void products_done() {
        give_owed_stage();
        end_last_task();
        if (p_.traced && first() && index_ == 0) {
            smem_.times[entry_.index].multiplied = arch::nanoseconds();
        }
    }

    // A half of a tile that is padding alone: nobody reads what it would make, for wgrads leave
    // such blocks out. Its consumer gives every stage back as it comes.
    static constexpr plan::TaskKind kNothing = plan::TaskKind::GateUp;  // of no backward
    __device__ __forceinline__ bool has_rows(const BackwardEntry& e) const {
        return plan::is_wgrad(e.kind) || e.num_rows > 64 * index_;
    }
    __device__ __forceinline__ void pass_over(const BackwardEntry& e) {
        const bool down = e.kind == plan::TaskKind::DownDgrad;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        kernels::pass_over(smem_, stage_, index_,
                           e.k_blocks + (down ? gate_up_blocks(width, e.part) : 0),
                           [this] {
                               give_owed_stage();
                               end_last_task();
                           });
        products_done();
    }

    // gate = x Wg^T + bg, up = x Wu^T + bu of rows that the context does not hold, as the forward
    // saves them.
    __device__ __forceinline__ void replay(const BackwardEntry& e) {
        float sum[128];
        multiply_blocks<Major::K, Major::K>(smem_, stage_, index_, e.k_blocks, false, sum,
                                            [&](int32_t k, uint32_t) { beside(k); });
        products_done();
        const int32_t width = p_.pass.problem.intermediate;
        const int32_t col0 = e.part * plan::kGateUpCols;
        const int32_t row = e.ring_row + 64 * index_;
        if (p_.biases.gate || p_.biases.up) {
            const int64_t at = int64_t{e.expert} * width;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const int32_t col = col0 + 8 * j + Fragment::column();
                const Pair g = bias_pair(p_.biases.gate, p_.biases.gate_at + at, col, width);
                const Pair u = bias_pair(p_.biases.up, p_.biases.up_at + at, col, width);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    sum[4 * j + 2 * h] += g.low;
                    sum[4 * j + 2 * h + 1] += g.high;
                    sum[64 + 4 * j + 2 * h] += u.low;
                    sum[64 + 4 * j + 2 * h + 1] += u.high;
                }
            }
        }
        const float limit = p_.activation.limit;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t col = col0 + 64 * half;
            if (col >= width) break;
            const auto pair = [&](int first_sum, int j, int h) -> Pair {
                const int i = first_sum + 4 * (8 * half + j) + 2 * h;
                return {sum[i], sum[i + 1]};
            };
            store(&routed_.ring.gate, col, row, [&](int j, int h) {
                return packed_beside(pair(0, j, h), limit, [](float v) { return v; });
            });
            store(&routed_.ring.up, col, row, [&](int j, int h) {
                return packed_beside(pair(64, j, h), limit, [](float v) { return fabsf(v); });
            });
        }
    }

    // d_hidden' = d_y Wd; then with the saved gate and up of each element the router gradient's
    // partial sums, d_gate, d_up and w * hidden; all three zero in padding rows.
    __device__ __forceinline__ void down_dgrad(const BackwardEntry& e) {
        float sum[128], weight[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int32_t r = 64 * index_ + Fragment::row(h);
            weight[h] = r < e.num_rows ? row_weight(e, r) : 0.0f;
        }
        multiply_blocks<Major::K, Major::Outer>(smem_, stage_, index_, e.k_blocks, false, sum,
                                                [&](int32_t k, uint32_t) { beside(k); });
        products_done();
        // Without limits the compiler drops all that belongs to them.
        constexpr float kUnlimited = std::numeric_limits<float>::infinity();
        if (p_.activation.limit == kUnlimited) {
            finish_down_dgrad(e, {kUnlimited, p_.activation.alpha, p_.activation.beta}, weight,
                              sum);
        } else {
            finish_down_dgrad(e, p_.activation, weight, sum);
        }
    }
    __device__ __forceinline__ void finish_down_dgrad(const BackwardEntry& e,
                                                      const Activation& activation,
                                                      const float (&weight)[2],
                                                      float (&sum)[128]) {
        const plan::Problem& problem = p_.pass.problem;
        const int32_t width = plan::width_of(problem, e.shared);
        const int32_t parts = plan::gate_up_parts(problem, e.shared);
        const int32_t num_blocks = gate_up_blocks(width, e.part);
        float* partials =
            e.shared ? p_.shared_router_partials + int64_t{e.begin} * (parts + 1)
                     : p_.router_partials + int64_t{e.ring_row} * (parts + 1);
        const RowPlace to = row_place(p_.pass, e, plan::RowBuffer::Operands, e.begin);
        const RowMaps& rows = to.kept ? maps(e).kept : maps(e).ring;
        float partial[2] = {0.0f, 0.0f};
        uint32_t real[2];  // all bits, none in padding
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            real[h] = 64 * index_ + Fragment::row(h) < e.num_rows ? ~0u : 0u;
        }
        constexpr int kBatch = 8;  // pairs under way at once
        int previous = 0;
        // The block's sums are always the first: a loop in place of four copies of its body, which
        // would be fetched as instructions more slowly than they run.
#pragma unroll 1
        for (int block = 0; block < num_blocks; ++block) {
            arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
            uint8_t* const half = smem_.stage[stage_.index] + index_ * 64 * 128;
            const uint32_t base = arch::shared_address(half);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int j0 = 0; j0 < 8; j0 += kBatch) {
                    uint32_t at[kBatch], gate[kBatch], up[kBatch];
                    DownDgradPair out[kBatch];
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        at[j] = base + Fragment::offset(Fragment::row(h), j0 + j);
                        gate[j] = arch::load_shared_word(at[j]);
                        up[j] = arch::load_shared_word(at[j] + kUpBytes);
                    }
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        const int i = 4 * (j0 + j) + 2 * h;
                        out[j] = down_dgrad_pair(activation, {sum[i], sum[i + 1]}, gate[j], up[j],
                                                 weight[h], partial[h]);
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
            arch::warpgroup_sync(1 + index_);
            if (first()) {
                const int32_t col = e.part * plan::kDownDgradCols + block * kGateUpBlockCols;
                const int32_t row = to.row + 64 * index_;
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
                add_partials(partials, parts + 1, 2 * e.part + block / 2, partial);
            }
            previous = stage_.index;
            stage_.advance();
#pragma unroll
            for (int i = 0; i < 96; ++i) sum[i] = sum[i + 32];
        }
        if (first()) {
            arch::wait_stores_read<0>();
            arch::barrier_arrive(&smem_.empty[previous]);
        }
        if (e.part == 0) {
            down_bias_partials(e, partials + parts, parts + 1);
        }
    }

    __device__ __forceinline__ float row_weight(const BackwardEntry& e, int32_t r) const {
        if (e.shared) return p_.has_shared_weights ? p_.shared_weights[e.begin + r] : 1.0f;
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::DY, e.begin);
        return (at.kept ? p_.kept : p_.ring).row_weights[at.row + r];
    }

    // The sums of 128 columns: each thread's, then those of the four threads of a row.
    __device__ __forceinline__ void add_partials(float* partials, int32_t stride, int32_t column,
                                                 float (&partial)[2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = partial[h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const int64_t r = 64 * index_ + Fragment::row(h);
            if (threadIdx.x % 4 == 0) partials[r * stride + column] = sum;
            partial[h] = 0.0f;
        }
    }

    // <d_y, down bias> of this half's rows, a warp a row; 0 where there is no bias.
    __device__ __forceinline__ void down_bias_partials(const BackwardEntry& e, float* partials,
                                                       int32_t stride) {
        const int32_t lane = threadIdx.x % 32, hidden = p_.pass.problem.hidden;
        const int32_t begin = 64 * index_ + 16 * (threadIdx.x % 128 / 32);
        if (e.shared || !p_.biases.down) {
            if (lane < 16) partials[int64_t{begin + lane} * stride] = 0.0f;
            return;
        }
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::DY, e.begin);
        const Bf16* rows = (at.kept ? p_.kept : p_.ring).d_y + int64_t{at.row} * hidden;
        const Bf16* bias = p_.biases.down_at + int64_t{e.expert} * hidden;
        for (int32_t r = begin; r < min(begin + 16, e.num_rows); ++r) {
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
            if (lane == 0) partials[int64_t{r} * stride] = sum;
        }
    }

    // Block `block` of 64 columns of the sums, rounded.
    __device__ __forceinline__ static auto d_x_of(const float (&sum)[128], int block) {
        return [&sum, block](int j, int h) {
            const int i = 4 * (8 * block + j) + 2 * h;
            return packed({sum[i], sum[i + 1]});
        };
    }

    // d_x = d_gate Wg + d_up Wu in one accumulation, rounded once.
    __device__ __forceinline__ void gate_up_dgrad(const BackwardEntry& e) {
        const bool pushes = p_.pushes_directly && !e.shared;
        float sum[128];
        HomeRows home;
        if (pushes) home = home_rows(e);
        multiply_blocks<Major::K, Major::Outer>(smem_, stage_, index_, e.k_blocks, false, sum,
                                                [&](int32_t k, uint32_t) { beside(k); });
        products_done();
        pushes ? push_d_x(e, home, sum) : store_d_x(e, sum);
    }
    __device__ __forceinline__ void store_d_x(const BackwardEntry& e, const float (&sum)[128]) {
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            const int32_t col = e.part * plan::kOutCols + 64 * block;
            if (col >= p_.pass.problem.hidden) break;
            store(&maps(e).out, col, e.ring_row + 64 * index_, d_x_of(sum, block));
        }
    }

    // Where the rows block_row(0..3) of d_x go; home -1: nowhere.
    struct HomeRows {
        int32_t home[4], route[4];
    };
    __device__ __forceinline__ HomeRows home_rows(const BackwardEntry& e) const {
        const plan::RouteTable& t = p_.pass.table;
        HomeRows rows;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int32_t slot = e.begin + 64 * index_ + block_row(i);
            rows.home[i] = t.slot_home[slot];
            rows.route[i] = t.slot_route[slot];
        }
        return rows;
    }
    __device__ __forceinline__ void push_d_x(const BackwardEntry& e, const HomeRows& rows,
                                             const float (&sum)[128]) {
        const int32_t hidden = p_.pass.problem.hidden;
        const int32_t col = e.part * plan::kOutCols + 8 * (threadIdx.x % 8);
        Bf16* to[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i] = rows.home[i] < 0 ? nullptr
                                     : p_.peer_combine[rows.home[i]] +
                                           int64_t{rows.route[i]} * hidden + col;
        }
        free_staging();
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            put_block(smem_.staging[index_], d_x_of(sum, block), [&](int i, int4 chunk) {
                if (to[i] != nullptr && col + 64 * block < hidden) {
                    *reinterpret_cast<int4*>(to[i] + 64 * block) = chunk;
                }
            });
        }
    }

    __device__ __forceinline__ void wgrad(const BackwardEntry& e) {
        if (!e.has_work) {
            products_done();
            return;
        }
        WgradTask task(p_, e, smem_, index_);
        float sum[128];
        task.begin(sum);
        multiply_blocks<Major::Outer, Major::Outer>(
            smem_, stage_, index_, e.k_blocks, task.continues(), sum, [&](int32_t k, uint32_t a) {
                beside(k);
                task.add_to_bias(k, a);
            });
        products_done();
        const BackwardMaps& m = maps(e);
        const bool down = e.kind == plan::TaskKind::DownWgrad;
        const bool gate = e.kind == plan::TaskKind::GateWgrad;
        if (e.by_stage) arch::barrier_wait(&smem_.full[stage_.index], stage_.parity);
        free_staging();
        task.end(sum, down ? &m.d_down : (gate ? &m.d_gate : &m.d_up), stage_.index);
        if (e.by_stage) {
            owed_stage_ = stage_.index;
            stage_.advance();
        }
    }

    // The last task's stores have read the staging, as each warp's first thread knows: from here on
    // all do.
    __device__ __forceinline__ void free_staging() { arch::warpgroup_sync(1 + index_); }

    template <class Value>
    __device__ __forceinline__ void store(const CUtensorMap* map, int32_t col, int32_t row,
                                          Value&& value) {
        store_block(smem_.staging[index_], index_, map, col, row, value);
    }

    const BackwardParams& p_;
    const BackwardMaps& routed_;
    const BackwardMaps& shared_;
    BackwardSharedMemory& smem_;
    int index_;
    arch::RingState<kStages> stage_;
    arch::RingState<kEntries> entry_;
    int owed_stage_ = -1;  // stage that tile stores may still read, -1: none
    int last_ = -1;  // entry of the task whose stores may be under way, -1: none
};

}  // namespace mok::kernels
