#pragma once

#include "kernels/backward_down_dgrad.cuh"
#include "kernels/backward_layout.cuh"
#include "kernels/backward_products.cuh"
#include "kernels/backward_wgrad.cuh"

// The consumer role of a backward: as the forward's, two warpgroups of 64 rows of the tile each,
// that an engine (BackwardWgmmaEngine, TensorMemoryEngine) makes the sums for.
namespace mok::kernels {

template <class Engine, class SavedRows = Bf16SavedRows>
class BackwardConsumer {
  public:
    __device__ __forceinline__ BackwardConsumer(const BackwardParams& p, const BackwardMaps& routed,
                                                const BackwardMaps& shared,
                                                BackwardSharedMemory& smem, const Engine& engine,
                                                int index, const SavedRows& saved = {})
        : p_(p),
          routed_(routed),
          shared_(shared),
          smem_(smem),
          engine_(engine),
          index_(index),
          saved_(saved) {}

    __device__ __forceinline__ void run() {
        while (true) {
            // A finished tile's stores complete while the next tile multiplies; with no next tile
            // at hand they are awaited first, for another CTA may be waiting.
            if (!arch::barrier_is_past(&smem_.entry_full[entry_.index], entry_.parity)) {
                end_last_task();
                arch::barrier_wait(&smem_.entry_full[entry_.index], entry_.parity);
            }
            const BackwardEntry e = smem_.entries[entry_.index];
            if (!e.more) break;
            if (p_.traced && first() && index_ == 0) {
                smem_.times[entry_.index].begin = arch::nanoseconds();
            }
            if constexpr (requires { engine_.begin(e); }) engine_.begin(e);
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
        Engine::sync(index_);
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
        // A step of the other CTA's task alone, where an engine has such.
        if constexpr (requires { Engine::is_dry(e); }) {
            if (Engine::is_dry(e)) return false;
        }
        return plan::is_wgrad(e.kind) || e.num_rows > Engine::idle_rows(index_);
    }
    __device__ __forceinline__ void pass_over(const BackwardEntry& e) {
        const bool down = e.kind == plan::TaskKind::DownDgrad;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        give_owed_stage();
        end_last_task();
        engine_.pass_over(e.k_blocks, down ? gate_up_blocks(width, e.part) : 0);
        products_done();
    }

    // gate = x Wg^T + bg, up = x Wu^T + bu of rows that the context does not hold, as the forward
    // saves them.
    __device__ __forceinline__ void replay(const BackwardEntry& e) {
        float sum[128];
        engine_.template multiply_blocks<Major::K, Major::K>(e.k_blocks, sum,
                                                             [&](int32_t k) { beside(k); });
        products_done();
        if (p_.biases.gate || p_.biases.up) {
            add_gate_up_bias(p_.biases, e.expert, e.part, p_.pass.problem.intermediate, sum);
        }
        if constexpr (SavedRows::kWholeBlocks) {
            saved_.template store_both<Engine>(smem_, index_, e, sum);
        } else {
            store_replayed(e, sum);
        }
    }
    __device__ __forceinline__ void store_replayed(const BackwardEntry& e,
                                                   const float (&sum)[128]) {
        const int32_t width = p_.pass.problem.intermediate;
        const int32_t col0 = e.part * plan::kGateUpCols;
        const int32_t row = e.ring_row + 64 * index_;
        const float limit = p_.activation.limit;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t col = col0 + 64 * half;
            if (col >= width) break;
            const auto pair = [&](int first_sum, int j, int h) -> Pair {
                const int i = first_sum + 4 * (8 * half + j) + 2 * h;
                return {sum[i], sum[i + 1]};
            };
            const BlockPlace to_gate{&routed_.ring.gate, col, row};
            saved_.template store<Engine>(smem_, index_, Saved::Gate, to_gate, [&](int j, int h) {
                return packed_beside(pair(0, j, h), limit, [](float v) { return v; });
            });
            const BlockPlace to_up{&routed_.ring.up, col, row};
            saved_.template store<Engine>(smem_, index_, Saved::Up, to_up, [&](int j, int h) {
                return packed_beside(pair(64, j, h), limit, [](float v) { return fabsf(v); });
            });
        }
    }

    // d_hidden' = d_y Wd; then with the saved gate and up what DownDgradTask makes of it.
    __device__ __forceinline__ void down_dgrad(const BackwardEntry& e) {
        DownDgradTask<Engine, SavedRows> task(p_, e, maps(e), smem_, index_, saved_);
        float sum[128];
        engine_.template multiply_blocks<Major::K, Major::Outer>(e.k_blocks, sum,
                                                                 [&](int32_t k) { beside(k); });
        products_done();
        task.end(sum, engine_.stage());
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
        const bool pushes = !e.shared;
        float sum[128];
        HomeRows home;
        if (pushes) home = home_rows(e);
        engine_.template multiply_blocks<Major::K, Major::Outer>(e.k_blocks, sum,
                                                                 [&](int32_t k) { beside(k); });
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
            const int32_t slot = e.begin + Engine::row_offset(index_) + block_row(i);
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
            to[i] = rows.home[i] < 0
                        ? nullptr
                        : p_.peer_combine[rows.home[i]] + int64_t{rows.route[i]} * hidden + col;
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
        WgradTask<Engine> task(p_, e, smem_, index_);
        float sum[128];
        engine_.template add_blocks<Major::Outer, Major::Outer>(e.k_blocks, task, sum,
                                                                [&](int32_t k) { beside(k); });
        products_done();
        const BackwardMaps& m = maps(e);
        const bool down = e.kind == plan::TaskKind::DownWgrad;
        const bool gate = e.kind == plan::TaskKind::GateWgrad;
        auto& stage = engine_.stage();
        if (e.by_stage) arch::barrier_wait(&smem_.full[stage.index], stage.parity);
        free_staging();
        task.end(sum, down ? &m.d_down : (gate ? &m.d_gate : &m.d_up), stage.index);
        if (e.by_stage) {
            owed_stage_ = stage.index;
            stage.advance();
        }
    }

    // The last task's stores have read the staging, as each warp's first thread knows: from here on
    // all do.
    __device__ __forceinline__ void free_staging() {
        Engine::sync(index_);
    }

    template <class Value>
    __device__ __forceinline__ void store(const CUtensorMap* map, int32_t col, int32_t row,
                                          Value&& value) {
        store_block<Engine>(smem_, index_, map, col, row, value);
    }

    const BackwardParams& p_;
    const BackwardMaps& routed_;
    const BackwardMaps& shared_;
    BackwardSharedMemory& smem_;
    Engine engine_;
    int index_;
    SavedRows saved_;
    arch::RingState<kEntries> entry_;
    int owed_stage_ = -1;  // stage that tile stores may still read, -1: none
    int last_ = -1;        // entry of the task whose stores may be under way, -1: none
};

}  // namespace mok::kernels
