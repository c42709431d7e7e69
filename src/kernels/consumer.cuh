#pragma once

#include <limits>

#include "kernels/for_each_constant.cuh"
#include "kernels/results.cuh"
#include "kernels/wgmma_engine.cuh"
#include "math/activation_math.h"
#include "math/saved_fp8.h"

// The consumer role: two warpgroups finish half of a tile's 128 rows each in registers. An engine
// (WgmmaEngine, TensorMemoryEngine) makes the sums. Thread t holds rows 16 (t / 32) + (t % 32) / 4
// and that + 8 of its consumer's 64, see wgmma.cuh; which rows of the tile these are the engine
// says.
namespace mok::kernels {

static_assert(kConsumers * 4 == plan::kComputeArrivals, "a warp tells its own rows");

// What a forward makes of BF16 results on their way out, eight columns of a row at a time: in BF16
// nothing. (Mxfp8Results: mxfp8_results.cuh.)
struct Bf16Results {
    static constexpr bool kSavesBf16 = true;
    __device__ int4 hidden(int4 chunk) const { return chunk; }
};

template <class Engine, class Results = Bf16Results>
class Consumer {
  public:
    __device__ Consumer(const ForwardParams& p, const ExpertMaps& routed, const ExpertMaps& shared,
                        ForwardSharedMemory& smem, const Engine& engine, int index,
                        const Results& results = {})
        : p_(p),
          routed_(routed),
          shared_(shared),
          smem_(smem),
          index_(index),
          engine_(engine),
          results_(results) {}

    __device__ __forceinline__ void run() {
        arch::RingState<kQueue> queue;
        while (true) {
            arch::barrier_wait(&smem_.task_full[queue.index], queue.parity);
            const QueueEntry& entry = smem_.queue[queue.index];
            const TileTask task = entry.task;
            if (task.kind < 0) break;

            TaskTimes* const times = timed(smem_.times[queue.index]);
            if (times != nullptr) times->begin = times->multiplied = arch::nanoseconds();
            if (task.rows > Engine::idle_rows(index_)) {
                work_on(task, entry, times);
            } else {
                engine_.pass_over(task.k_blocks, 0);
                if (is_gate_up(task)) leave_zeros(task);
            }
            // Every lane's stores, for copies that read them -> the first lane's arrival.
            arch::fence_global_to_copies();
            __syncwarp();
            if (threadIdx.x % 32 == 0) arch::barrier_arrive(&smem_.task_done[queue.index]);
            arch::barrier_arrive(&smem_.task_empty[queue.index]);
            queue.advance();
        }
    }

  private:
    __device__ static bool is_gate_up(const TileTask& e) {
        return e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
    }

    // Null but for the thread that keeps a traced pass's times.
    __device__ TaskTimes* timed(TaskTimes& times) const {
        return p_.traced && threadIdx.x % 128 == 0 && index_ == 0 ? &times : nullptr;
    }

    // Where this thread's rows of y go; null: nowhere.
    struct HomeRows {
        Bf16* at[2];
    };
    __device__ HomeRows home_rows(const QueueEntry& entry) const {
        HomeRows rows;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            rows.at[h] = reinterpret_cast<Bf16*>(entry.home_row[tile_row(h)]);
        }
        return rows;
    }
    // The row of the tile in which this thread has its row half h.
    __device__ int tile_row(int h) const {
        return Engine::row_offset(index_) + own_row(h);
    }

    // The products and results of this half of a task's tile. What the results need of the queue is
    // read before, while there is time.
    __device__ void work_on(const TileTask& task, const QueueEntry& entry, TaskTimes* times) {
        const HomeRows rows = home_rows(entry);
        float sum[128];
        engine_.multiply(task.k_blocks, sum);
        if (times != nullptr) times->multiplied = arch::nanoseconds();
        if (is_gate_up(task)) {
            finish_gate_up(task, sum);
        } else {
            finish_down(task, rows, sum);
        }
    }

    // A half without rows: nobody reads its hidden or y, but the backward reads whole tiles of the
    // context.
    __device__ void leave_zeros(const TileTask& e) {
        if (e.saved_row < 0) return;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        const auto zero = [](int, int) { return int4{0, 0, 0, 0}; };
        for (int32_t col = e.part * plan::kGateUpCols;
             col < plan::min_of(width, (e.part + 1) * plan::kGateUpCols); col += 64) {
            save(Saved::Gate, e, width, col, zero);
            save(Saved::Up, e, width, col, zero);
        }
    }

    // gate = x Wg^T + bg, up = x Wu^T + bu; hidden = activate(gate, up) from the FP32 sums.
    __device__ void finish_gate_up(const TileTask& e, float (&sum)[128]) {
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        if (!e.shared && (p_.biases.gate || p_.biases.up)) {
            add_gate_up_bias<Eights>(p_.biases, e.expert, e.part, width, sum);
        }
        // Without limits the compiler drops all that belongs to them.
        constexpr float kUnlimited = std::numeric_limits<float>::infinity();
        if (p_.activation.limit == kUnlimited) {
            store_gate_up(e, {kUnlimited, p_.activation.alpha, p_.activation.beta}, sum);
        } else {
            store_gate_up(e, p_.activation, sum);
        }
    }

    // hidden, and where they are saved gate and up, 64 columns a round. The round is a loop that
    // moves the sums down: a straight line of instructions that each run once a task waits for
    // every one of them to be fetched.
    __device__ __forceinline__ void store_gate_up(const TileTask& e, const Activation& a,
                                                  float (&sum)[128]) {
        const ExpertMaps& maps = e.shared ? shared_ : routed_;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        const int32_t end = plan::min_of(width, (e.part + 1) * plan::kGateUpCols);
        constexpr auto at = Eights::index;
#pragma unroll 1
        for (int32_t col = e.part * plan::kGateUpCols; col < end; col += 64) {
            store(maps.hidden_rows, e.row, width, col, [&](int g, int h) {
                return results_.hidden(packed_eight([&](int c) {
                    const int i = at(g, h, c);
                    return activate(a, sum[i], sum[64 + i]);
                }));
            });
            if (e.saved_row >= 0) {
                if (a.limit != std::numeric_limits<float>::infinity()) {
                    round_beside_limit(LimitZone(a.limit), sum);
                }
                const auto columns_from = [&](int first) {
                    return [&sum, first](int g, int h) {
                        return packed_eight([&](int c) { return sum[first + at(g, h, c)]; });
                    };
                };
                save(Saved::Gate, e, width, col, columns_from(0));
                save(Saved::Up, e, width, col, columns_from(64));
            }
            for_each_of_round([&](int i) {
                sum[i] = sum[i + at(2, 0, 0)];
                sum[64 + i] = sum[64 + i + at(2, 0, 0)];
            });
        }
    }
    // Sums of a round's 64 columns of gate; those of up are 64 behind them.
    template <class Visitor>
    __device__ __forceinline__ static void for_each_of_round(Visitor&& visit) {
#pragma unroll
        for (int g = 0; g < 2; ++g) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int c = 0; c < 8; ++c) visit(Eights::index(g, h, c));
            }
        }
    }

    // Of gate and up of a round: those that rounding would take across the limit.
    __device__ __forceinline__ static void round_beside_limit(const LimitZone& zone,
                                                              float (&sum)[128]) {
        float nearest = zone.half_width();
        for_each_of_round([&](int i) {
            nearest = fminf(nearest, fminf(zone.distance(sum[i]), zone.distance(sum[64 + i])));
        });
        if (!__any_sync(~0u, nearest < zone.half_width())) return;
        for_each_of_round([&](int i) {
            sum[i] = zone.out_of(sum[i]);
            sum[64 + i] = copysignf(zone.out_of(fabsf(sum[64 + i])), sum[64 + i]);
        });
    }

    // y = hidden Wd^T + bd, rounded once.
    __device__ void finish_down(const TileTask& e, const HomeRows& rows, float (&sum)[128]) {
        const ExpertMaps& maps = e.shared ? shared_ : routed_;
        const int32_t hidden = p_.pass.problem.hidden;
        const int32_t col0 = e.part * plan::kOutCols;
        if (!e.shared && p_.biases.down) {
            add_bias<Eights>(p_.biases.down_at + int64_t{e.expert} * hidden, col0, hidden, sum);
        }
        if (e.pushes) {
            push_y(rows.at, col0, hidden, sum);
            return;
        }
        const auto y = [&sum](int group, int h) {
            return packed_eight([&](int c) { return sum[Eights::index(group, h, c)]; });
        };
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            store(maps.out_rows, e.row, hidden, col0 + 64 * block,
                  [&](int g, int h) { return y(2 * block + g, h); });
        }
    }

    // 64 columns of this consumer's rows of a tile, which begins at `row` of a matrix of `cols`;
    // they are read in this pass, or in a later one. eight(g, h): this thread's columns of group g.
    template <Reads kReads = Reads::Soon, class Columns>
    __device__ __forceinline__ void store(Bf16* matrix, int32_t row, int32_t cols, int32_t col,
                                          Columns&& eight) {
        const int32_t own_col = col + Eights::own_column();
        const int32_t groups = Eights::groups_below(cols - own_col);
        Bf16* const first = matrix + int64_t{row + tile_row(0)} * cols + own_col;
        Bf16* const at[2] = {first, first + int64_t{8} * cols};
        for_each_constant<2>([&](auto g) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int4 result = eight(g, h);
                arch::store_global_chunk_below<g, Eights::kBytes * g, kReads == Reads::Later>(
                    at[h], groups, result);
            }
        });
    }
    // 64 columns of gate or up for the backward.
    template <class Columns>
    __device__ __forceinline__ void save(Saved which, const TileTask& e, int32_t width, int32_t col,
                                         Columns&& eight) {
        if constexpr (Results::kSavesBf16) {
            const ExpertMaps& maps = e.shared ? shared_ : routed_;
            store<Reads::Later>(which == Saved::Gate ? maps.gate_rows : maps.up_rows, e.saved_row,
                                width, col, eight);
        } else {
            results_.save(which, e.saved_row + tile_row(0), col, eight);
        }
    }

    const ForwardParams& p_;
    const ExpertMaps& routed_;
    const ExpertMaps& shared_;
    ForwardSharedMemory& smem_;
    int index_;
    Engine engine_;
    Results results_;
};

}  // namespace mok::kernels
