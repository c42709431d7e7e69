#pragma once

#include "kernels/fp8_products.cuh"
#include "kernels/fp8_results.cuh"

// The consumer role of the FP8 forward: two warpgroups multiply, 64 rows of the tile each, and
// finish their half in registers, as in BF16 (consumer.cuh). A tile of GateUp has one block of 128
// columns of gate and the same of up, so a row's hidden is a block, which is quantised here.
namespace mok::kernels::fp8 {

class Consumer {
  public:
    __device__ Consumer(const Fp8ForwardParams& p, SharedMemory& smem, const arch::Cluster& cluster,
                        int index)
        : p_(p), smem_(smem), owners_(smem, cluster), index_(index) {}

    __device__ __forceinline__ void run() {
        arch::RingState<kStages> stage;
        arch::RingState<kQueue> queue;
        while (true) {
            arch::barrier_wait(&smem_.task_full[queue.index], queue.parity);
            const QueueEntry& entry = smem_.queue[queue.index];
            const TileTask& task = entry.task;
            if (task.kind < 0) break;

            TaskTimes* const times = timed(smem_.times[queue.index]);
            if (times != nullptr) times->begin = times->multiplied = arch::nanoseconds();
            if (task.rows > 64 * index_) {
                work_on(entry, stage, times);
            } else {
                pass_over(smem_, owners_, stage, index_, k_blocks_of(task));
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

    // The products and results of this half of a task's tile.
    __device__ __forceinline__ void work_on(const QueueEntry& entry,
                                            arch::RingState<kStages>& stage, TaskTimes* times) {
        float sum[128];
        const int32_t k_blocks = k_blocks_of(entry.task);
        const Turns turns(index_, k_blocks > kStages && entry.task.rows > 64);
        multiply(smem_, owners_, stage, index_, turns, k_blocks, sum);
        if (times != nullptr) times->multiplied = arch::nanoseconds();
        if (is_gate_up(entry.task)) {
            finish_gate_up(entry.task, sum);
        } else {
            finish_down(entry, sum);
        }
    }

    // ---- GateUp -----------------------------------------------------------------------------
    enum class Rows { Hidden, Gate, Up };

    // `row`: of the tile in the ring, or in the context.
    __device__ RowsTarget target(Rows rows, const TileTask& e) const {
        const int32_t blocks = plan::ceil_div(p_.pass.problem.intermediate, 128);
        const int64_t row = rows == Rows::Hidden ? e.row : e.saved_row;
        uint8_t* const elements = rows == Rows::Hidden ? p_.hidden_elements
                                  : rows == Rows::Gate ? p_.gate_elements
                                                       : p_.up_elements;
        float* const scales = rows == Rows::Hidden ? p_.hidden_scales
                              : rows == Rows::Gate ? p_.gate_scales
                                                   : p_.up_scales;
        const int64_t row_bytes = int64_t{blocks} * 128;
        return {elements + (row + 64 * index_) * row_bytes + e.part * plan::kGateUpCols, row_bytes,
                scales + row * blocks + e.part * plan::kTileRows + 64 * index_};
    }

    // A half without rows: nobody reads its hidden or y, but the backward reads whole tiles of the
    // context.
    __device__ void leave_zeros(const TileTask& e) {
        if (e.saved_row < 0) return;
        const Pairs zeros{};
        store_eights<Reads::Later>(target(Rows::Gate, e), zeros, SidesNowhere{});
        store_eights<Reads::Later>(target(Rows::Up, e), zeros, SidesNowhere{});
    }

    // gate = x Wg^T + bg, up = x Wu^T + bu; hidden = activate(gate, up) from the FP32 sums.
    __device__ void finish_gate_up(const TileTask& e, float (&sum)[128]) {
        const int32_t width = p_.pass.problem.intermediate;
        if (p_.biases.gate || p_.biases.up) {
            add_gate_up_bias<Eights>(p_.biases, e.expert, e.part, width, sum);
        }
        // Without limits the compiler drops all that belongs to them.
        constexpr float kUnlimited = std::numeric_limits<float>::infinity();
        if (p_.activation.limit == kUnlimited) {
            store_gate_up<false>(e, {kUnlimited, p_.activation.alpha, p_.activation.beta}, sum);
        } else {
            store_gate_up<true>(e, p_.activation, sum);
        }
    }

    // hidden, and where they are saved gate and up. One loop that moves up's sums to gate's place,
    // so that what quantises and stores a block is there once.
    template <bool kLimited>
    __device__ __forceinline__ void store_gate_up(const TileTask& e, const Activation& a,
                                                  float (&sum)[128]) {
        const bool activates = p_.pass.kind == plan::PassKind::Forward;
        EightPairs pair;
#pragma unroll 1
        for (int i = activates ? 0 : 1; i < (e.saved_row >= 0 ? 3 : 1); ++i) {
            const Rows rows = static_cast<Rows>(i);
            if (rows == Rows::Hidden) {
                for_each_pair([&](int k, int first, int second) {
                    pair[k] = packed({activate(a, sum[first], sum[64 + first]),
                                      activate(a, sum[second], sum[64 + second])});
                });
                store_eights<Reads::Soon>(target(rows, e), pair, SidesNowhere{});
                continue;
            }
            const uint32_t size_mask = rows == Rows::Up ? 0x7fffffffu : 0xffffffffu;
            if constexpr (kLimited) {
                store_saved(rows, e, a, size_mask, sum, pair);
            } else {
                for_each_pair([&](int k, int first, int second) {
                    pair[k] = packed({sum[first], sum[second]});
                });
                store_eights<Reads::Later>(target(rows, e), pair, SidesNowhere{});
            }
#pragma unroll
            for (int k = 0; k < 64; ++k) sum[k] = sum[64 + k];
        }
    }
    // Saved gate or up where there is a limit. size_mask: of what counts of a value beside it.
    __device__ __forceinline__ void store_saved(Rows rows, const TileTask& e, const Activation& a,
                                                uint32_t size_mask, const float (&sum)[128],
                                                EightPairs& pair) const {
        const auto size = [size_mask](float v) {
            return __uint_as_float(__float_as_uint(v) & size_mask);
        };
        float nearest = std::numeric_limits<float>::infinity();
#pragma unroll
        for (int k = 0; k < 64; ++k) nearest = fminf(nearest, fabsf(size(sum[k]) - a.limit));
        // BF16 is off by 2^-9 of the value.
        if (__any_sync(~0u, nearest <= 0x1p-7f * a.limit)) {
            for_each_pair([&](int k, int first, int second) {
                pair[k] = packed_beside({sum[first], sum[second]}, a.limit, size);
            });
        } else {
            for_each_pair([&](int k, int first, int second) {
                pair[k] = packed({sum[first], sum[second]});
            });
        }
        const OwnSides sides{rows == Rows::Up ? Saved::Up : Saved::Gate, a};
        store_eights<Reads::Later>(target(rows, e), pair, SidesNear{sides, nearest});
    }
    // Of 128 columns: which of EightPairs has which two sums.
    template <class Visitor>
    __device__ __forceinline__ static void for_each_pair(Visitor&& visit) {
#pragma unroll
        for (int k = 0; k < 32; ++k) {
            const int h = k / 16, g = k / 4 % 4, c = 2 * (k % 4);
            visit(k, Eights::index(g, h, c), Eights::index(g, h, c + 1));
        }
    }

    // ---- Down -------------------------------------------------------------------------------
    // y = hidden Wd^T + bd, rounded once, to its home rows.
    __device__ void finish_down(const QueueEntry& entry, float (&sum)[128]) {
        const int32_t hidden = p_.pass.problem.hidden;
        const int32_t col0 = entry.task.part * plan::kOutCols;
        if (p_.biases.down) {
            add_bias<Eights>(p_.biases.down_at + int64_t{entry.task.expert} * hidden, col0, hidden,
                             sum);
        }
        Bf16* rows[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            rows[h] = reinterpret_cast<Bf16*>(entry.home_row[64 * index_ + own_row(h)]);
        }
        push_y(rows, col0, hidden, sum);
    }

    const Fp8ForwardParams& p_;
    SharedMemory& smem_;
    StageOwners owners_;
    int index_;
};

}  // namespace mok::kernels::fp8
