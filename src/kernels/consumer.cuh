#pragma once

#include <cuda_bf16.h>

#include <bit>
#include <limits>

#include "arch/copy.cuh"
#include "arch/wgmma.cuh"
#include "kernels/eights.cuh"
#include "kernels/for_each_constant.cuh"
#include "kernels/pair.cuh"
#include "math/activation_math.h"
#include "math/saved_fp8.h"

// The consumer role: two warpgroups finish half of a tile's 128 rows each in registers. An engine
// (WgmmaEngine, TensorMemoryEngine) makes the sums. Thread t holds rows 16 (t / 32) + (t % 32) / 4
// and that + 8 of its consumer's 64, see wgmma.cuh; which rows of the tile these are the engine
// says.
namespace mok::kernels {

// ---- Products -----------------------------------------------------------------------------------
// sum[64, 256] over all k blocks of a task, in order. The tensor core is fed one stage ahead of the
// stage that is given back by one thread: the products hold the warps of the consumer together.
__device__ inline void multiply(SharedMemory& smem, const StageOwners& owners,
                                arch::RingState<kStages>& stage, int consumer, int32_t k_blocks,
                                float (&sum)[128]) {
    const bool first = threadIdx.x % 128 == 0;
    int previous = 0;
    for (int32_t k = 0; k < k_blocks; ++k) {
        arch::barrier_wait(&smem.full[stage.index], stage.parity);
        const uint32_t a = arch::shared_address(smem.stage[stage.index]);
        const uint64_t a_at = arch::k_major_descriptor(a + consumer * 64 * kTileK * 2);
        const uint64_t b_at = arch::k_major_descriptor(a + kABytes);
        arch::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            arch::wgmma_m64n256k16(sum, a_at + 2 * step, b_at + 2 * step, (k | step) != 0);
        }
        arch::wgmma_commit();
        arch::wgmma_wait<1>();
        if (k > 0 && first) owners.give_back(previous);
        previous = stage.index;
        stage.advance();
    }
    arch::wgmma_wait<0>();
    if (first) owners.give_back(previous);
}

// What a consumer does for a task in which its half of the tile has no rows: it gives every stage
// back as it comes. One warp alone waits for the stages, the one of the thread that gives them
// back: no product holds the others together with it, and a warp that comes two rounds late would
// take the phase of a barrier for an earlier one's.
__device__ inline void pass_over(SharedMemory& smem, const StageOwners& owners,
                                 arch::RingState<kStages>& stage, int consumer, int32_t k_blocks) {
    const int thread = threadIdx.x % 128;
    for (int32_t k = 0; k < k_blocks; ++k) {
        if (thread < 32) {
            arch::barrier_wait(&smem.full[stage.index], stage.parity);
            __syncwarp();  // before the arrival that lets the stage go on
            if (thread == 0) owners.give_back(stage.index);
        }
        stage.advance();
    }
    arch::warpgroup_sync(1 + consumer);
}

// The matrix engine of sm_90a for one thread of a consumer: the warpgroup multiplies itself, and
// its sums are in registers from the first block on.
class WgmmaEngine {
  public:
    __device__ WgmmaEngine(SharedMemory& smem, const arch::Cluster& cluster, int consumer)
        : smem_(smem), owners_(smem, cluster), consumer_(consumer) {}

    // The tile's row that is the consumer's row r, less r: the same for all rows of a warp.
    __device__ static int row_offset(int consumer) { return 64 * consumer; }
    // A consumer has something to do in tiles of more than so many real rows.
    __device__ static int idle_rows(int consumer) { return 64 * consumer; }
    // Which 64 rows of the tile this thread's are among: 0 or 1.
    __device__ static int half_of_tile(int consumer) { return consumer; }
    // Where a consumer's row 0 lies, and so every row, in a block of a tile's 128 rows x 128 bytes
    // that the consumers share; a consumer's tile stores take rows 64 * consumer up to + 63.
    __device__ static uint8_t* rows_of(uint8_t* block, int consumer) {
        return block + row_offset(consumer) * 128;
    }
    // Barrier among the threads that write the rows of one tile store.
    __device__ static void sync(int consumer) { arch::warpgroup_sync(1 + consumer); }

    // The sums of a forward task's k blocks.
    __device__ void multiply(int32_t k_blocks, float (&sum)[128]) {
        kernels::multiply(smem_, owners_, stage_, consumer_, k_blocks, sum);
    }
    // A task without rows: its products, if there are any, and its other stages, the products'
    // successors in the ring that consumers alone use.
    __device__ void pass_over(int32_t k_blocks, int32_t other_stages) {
        kernels::pass_over(smem_, owners_, stage_, consumer_, k_blocks + other_stages);
    }

    // The next stage of the ring.
    __device__ arch::RingState<kStages>& stage() { return stage_; }

  protected:
    SharedMemory& smem_;
    StageOwners owners_;
    int consumer_;
    arch::RingState<kStages> stage_;
};

// ---- Results ------------------------------------------------------------------------------------
// Two neighbours as saved_gate and saved_up have them, without a branch: a branch an element would
// cost the epilogue more than the products of four k blocks.
template <class Magnitude>
__device__ inline uint32_t packed_beside(Pair p, float limit, Magnitude&& magnitude) {
    const uint32_t both = packed(p);
    const float low = __uint_as_float(both << 16), high = __uint_as_float(both & 0xffff0000u);
    const uint32_t step_low = (magnitude(p.low) > limit) - (magnitude(low) > limit);
    const uint32_t step_high = (magnitude(p.high) > limit) - (magnitude(high) > limit);
    return ((both + step_low) & 0xffffu) | ((both & 0xffff0000u) + (step_high << 16));
}

// Values that rounding to BF16 may take across a limit: those between its neighbours in BF16. A
// warp looks whether it has one, which is rare, for far fewer instructions than it takes to round
// every value with the limit in mind. See saved_gate and saved_up.
class LimitZone {
  public:
    __device__ explicit LimitZone(float limit)
        : limit_(limit),
          below_(std::bit_cast<float>(std::bit_cast<uint32_t>(limit) & 0xffff0000u)),
          above_(std::bit_cast<float>((std::bit_cast<uint32_t>(limit) & 0xffff0000u) + 0x10000u)),
          middle_(0.5f * (below_ + above_)) {}

    // Of a magnitude: below half_width() in the zone.
    __device__ float distance(float v) const { return fabsf(fabsf(v) - middle_); }
    __device__ float half_width() const { return above_ - middle_; }
    // A value in the zone becomes the neighbour on its side of the limit; others stay.
    __device__ float out_of(float v) const {
        return v > below_ && v < above_ ? (v > limit_ ? above_ : below_) : v;
    }

  private:
    float limit_, below_, above_, middle_;
};

// Writes half h of every warp's 16 rows of a [64, 64] block of BF16 results to staging: value(j, h)
// gives columns 8j + 2 (t % 4) and the next of a row, packed, j < 8. The warp calls it when nobody
// reads its part of the staging any more, and synchronises before anybody does.
template <class Value>
__device__ inline void stage_half(uint8_t* staging, int h, Value&& value) {
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const uint32_t base = arch::shared_address(staging);
#pragma unroll
    for (int j0 = 0; j0 < 8; j0 += 4) {
        uint32_t v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[j] = value(j0 + j, h);
        }
        // 16-byte chunk c of row r lies at c ^ (r % 8): the swizzle of the store's tensor map.
        const int r = 16 * warp + 8 * h + lane % 8, c = j0 + lane / 8;
        arch::store_matrix_x4(base + r * 128 + ((c ^ (r & 7)) << 4), v);
    }
}
template <class Value>
__device__ inline void stage_block(uint8_t* staging, Value&& value) {
#pragma unroll
    for (int h = 0; h < 2; ++h) stage_half(staging, h, value);
}

// A [64, 64] block of BF16 results to rows that lie anywhere, by every warp for its own 16 rows,
// through its part of the staging: eight threads have 128 bytes of a row. put(i, chunk) gets row
// block_row(i) of the consumer's 64 and its columns 8 (lane % 8) up to + 7. Nobody else reads or
// writes the staging meanwhile. By ordinary stores, which nobody waits for: of the copy engine's a
// warp would have to wait for the staging.
__device__ __forceinline__ int block_row(int i) {
    return 16 * (threadIdx.x % 128 / 32) + 4 * i + threadIdx.x % 32 / 8;
}
template <class Value, class Put>
__device__ __forceinline__ void put_block(uint8_t* staging, Value&& value, Put&& put) {
    const int c = threadIdx.x % 8;
    __syncwarp();  // the last block is read
    stage_block(staging, value);
    __syncwarp();
    const uint32_t base = arch::shared_address(staging);
    int4 chunks[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = block_row(i);
        chunks[i] = arch::load_shared_chunk(base + r * 128 + ((c ^ (r & 7)) << 4));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) put(i, chunks[i]);
}

// A staged block to rows 64 * consumer up to + 63 of a tile, of which `row` is the first, by one
// thread's tile store.
template <class Engine, class Value>
__device__ inline void store_block(SharedMemory& smem, int consumer, const CUtensorMap* map,
                                   int32_t col, int32_t row, Value&& value) {
    const bool first = threadIdx.x % 128 == 0;
    if (first) arch::wait_stores_read<0>();
    Engine::sync(consumer);
    stage_block(Engine::rows_of(smem.staging[0], consumer), value);
    arch::fence_shared_to_copies();
    Engine::sync(consumer);
    if (first) {
        arch::store_tile(map, col, row, 0, smem.staging[consumer]);
        arch::commit_stores();
    }
}

// Two neighbouring elements of a BF16 vector, zeros past its end or where there is none.
__device__ inline Pair bias_pair(bool there, const Bf16* at, int32_t col, int32_t cols) {
    if (!there || col >= cols) return {0.0f, 0.0f};
    return {to_f32(at[col]), to_f32(at[col + 1])};
}

// Element `col` of a BF16 vector, zero past its end or where there is none.
__device__ inline float bias_at(bool there, const Bf16* at, int32_t col, int32_t cols) {
    return there && col < cols ? to_f32(at[col]) : 0.0f;
}

// The biases of an expert's part of gate and up, of width columns, to the sums of both.
template <class Columns = PlainColumns>
__device__ __forceinline__ void add_gate_up_bias(const Biases& biases, int32_t expert, int32_t part,
                                                 int32_t width, float (&sum)[128]) {
    const int64_t at = int64_t{expert} * width;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32_t col = part * plan::kGateUpCols + Columns::column(j, i);
            const float g = bias_at(biases.gate, biases.gate_at + at, col, width);
            const float u = bias_at(biases.up, biases.up_at + at, col, width);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                sum[4 * j + 2 * h + i] += g;
                sum[64 + 4 * j + 2 * h + i] += u;
            }
        }
    }
}
// That of down to the sums of `cols` columns in all, from col0 on.
template <class Columns = PlainColumns>
__device__ __forceinline__ void add_down_bias(const Bf16* bias, int32_t col0, int32_t cols,
                                              float (&sum)[128]) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float b = bias_at(true, bias, col0 + Columns::column(j, i), cols);
            sum[4 * j + i] += b;
            sum[4 * j + 2 + i] += b;
        }
    }
}

static_assert(kConsumers * 4 == plan::kComputeArrivals, "a warp tells its own rows");

// ---- Tasks --------------------------------------------------------------------------------------
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
            add_down_bias<Eights>(p_.biases.down_at + int64_t{e.expert} * hidden, col0, hidden,
                                  sum);
        }
        const auto y = [&sum](int group, int h) {
            return packed_eight([&](int c) { return sum[Eights::index(group, h, c)]; });
        };
        if (e.pushes) {
            push_rows(rows, col0, y);
            return;
        }
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            store(maps.out_rows, e.row, hidden, col0 + 64 * block,
                  [&](int g, int h) { return y(2 * block + g, h); });
        }
    }

    // A tile's columns of y to their home rows.
    template <class Columns>
    __device__ __forceinline__ void push_rows(const HomeRows& rows, int32_t col0, Columns&& y) {
        const int32_t col = col0 + Eights::own_column();
        const int32_t groups = Eights::groups_below(p_.pass.problem.hidden - col);
        Bf16* const at[2] = {rows.at[0] + col, rows.at[1] + col};
        const int32_t ends[2] = {rows.at[0] == nullptr ? 0 : groups,
                                 rows.at[1] == nullptr ? 0 : groups};
        for_each_constant<plan::kOutCols / Eights::kCols>([&](auto g) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                arch::store_global_chunk_below<g, Eights::kBytes * g>(at[h], ends[h], y(g, h));
            }
        });
    }

    // 64 columns of this consumer's rows of a tile, which begins at `row` of a matrix of `cols`;
    // they are read in this pass, or in a later one. eight(g, h): this thread's columns of group g.
    enum class Reads { Soon, Later };
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
                if constexpr (kReads == Reads::Later) {
                    arch::store_global_chunk_below_once<g, Eights::kBytes * g>(at[h], groups,
                                                                               result);
                } else {
                    arch::store_global_chunk_below<g, Eights::kBytes * g>(at[h], groups, result);
                }
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
