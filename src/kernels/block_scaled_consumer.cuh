#pragma once

#include <limits>

#include "kernels/block_scaled_products.cuh"
#include "kernels/block_scaled_results.cuh"

// The consumer role of the MXFP8 forward: as in BF16 (consumer.cuh), two warpgroups finish half of
// a tile's rows each in registers. A tile of GateUp has 128 columns of gate and the same of up, so
// a row's hidden is four blocks, which are quantised here.
namespace mok::kernels::block_scaled {

// Memory: SharedMemory or AloneMemory; kCtas: as TensorMemoryEngine has it.
template <class Memory, int kCtas>
class Consumer {
    using Engine = block_scaled::Engine<kCtas>;

  public:
    __device__ Consumer(const BlockScaledForwardParams& p, const BlockScaledExpertMaps& maps,
                        Memory& smem, int index)
        : p_(p), maps_(maps), smem_(smem), engine_(smem, index), index_(index) {}

    __device__ void run() {
        arch::RingState<kQueue> queue;
        while (true) {
            // A finished tile's stores complete while the next tile multiplies; with no next tile
            // at hand they are told first, for another CTA may be waiting.
            if (!arch::barrier_is_past(&smem_.task_full[queue.index], queue.parity)) {
                tell_finished();
                arch::barrier_wait(&smem_.task_full[queue.index], queue.parity);
            }
            const QueueEntry& entry = smem_.queue[queue.index];
            const TileTask& task = entry.task;
            if (task.kind < 0) break;

            const uint64_t begin = p_.traced ? arch::nanoseconds() : 0;
            if (task.rows > Engine::idle_rows(index_)) {
                work_on(entry);
            } else {
                engine_.pass_over([this] { tell_finished(); });
                multiplied_ = begin;
            }
            finished_ = {static_cast<plan::TaskKind>(task.kind), task.is_dry ? -1 : task.tile,
                         task.part, -1, -1};
            begin_ = begin;
            arch::barrier_arrive(&smem_.task_empty[queue.index]);
            queue.advance();
        }
        tell_finished();
    }

  private:
    __device__ void work_on(const QueueEntry& entry) {
        engine_.begin([this] { tell_finished(); });
        multiplied_ = p_.traced ? arch::nanoseconds() : 0;
        if (entry.task.kind == static_cast<int32_t>(plan::TaskKind::GateUp)) {
            // Without limits the compiler drops all that belongs to them.
            constexpr float kUnlimited = std::numeric_limits<float>::infinity();
            if (p_.activation.limit == kUnlimited) {
                finish_gate_up<NoSides>(entry.task,
                                        {kUnlimited, p_.activation.alpha, p_.activation.beta});
            } else {
                finish_gate_up<OwnSides>(entry.task, p_.activation);
            }
        } else {
            finish_down(entry);
        }
        engine_.end();
    }

    // The first lane of every warp: its stores of the last task are complete, and the other lanes'
    // scales lie behind a barrier of the warp; its arrival makes them visible. y at home rows
    // nobody in the pass reads.
    __device__ void tell_finished() {
        if (threadIdx.x % 32 == 0 && finished_.tile >= 0) {
            arch::wait_stores_done();
            arch::fence_global_to_copies();
            plan::Arrival a = plan::arrival_of_tile(finished_);
            a.count = 1;  // of plan::kComputeArrivals
            arrive(p_, a);
            if (p_.traced && threadIdx.x % 128 == 0 && index_ == 0) {
                trace_task(p_, finished_, begin_, multiplied_);
            }
        }
        finished_.tile = -1;
    }

    // ---- GateUp -----------------------------------------------------------------------------
    enum class Rows { Hidden, Gate, Up };

    // `row`: of the tile in the ring, or in the context.
    __device__ RowsTarget target(Rows rows, const TileTask& e) const {
        const int32_t blocks = plan::ceil_div(p_.pass.problem.intermediate, kTileK);
        const int32_t row = rows == Rows::Hidden ? e.row : e.saved_row;
        uint32_t* scales = rows == Rows::Hidden ? p_.hidden_scales
                           : rows == Rows::Gate ? p_.gate_scales
                                                : p_.up_scales;
        const CUtensorMap* map = rows == Rows::Hidden ? &maps_.hidden_store
                                 : rows == Rows::Gate ? &maps_.gate_save
                                                      : &maps_.up_save;
        scales += int64_t{row} * blocks + e.part * plan::kTileRows;
        return {map, e.part * plan::kGateUpCols, row, scales};
    }

    // Columns [32 b, 32 b + 32) of gate or up with their bias.
    __device__ __forceinline__ void load_with_bias(typename Engine::Columns& to, const TileTask& e,
                                                   bool up, int b) const {
        engine_.load(to, (up ? plan::kGateUpCols : 0) + Engine::kColumns * b);
        if (!(up ? p_.biases.up : p_.biases.gate)) return;
        const int32_t width = p_.pass.problem.intermediate;
        const Bf16* bias = (up ? p_.biases.up_at : p_.biases.gate_at) + int64_t{e.expert} * width;
        add_bias(bias, e.part * plan::kGateUpCols + Engine::kColumns * b, width, to);
    }

    // gate = x Wg^T + bg, up = x Wu^T + bu; hidden = activate(gate, up) from the FP32 sums; and
    // where they are saved gate and up.
    template <class Sides>
    __device__ __forceinline__ void finish_gate_up(const TileTask& e, const Activation& a) {
        const int32_t warp_row = threadIdx.x % 128 / 32 * 16;
        uint8_t* const staging = smem_.staging[index_] + warp_row * 128;
        const int32_t row = Engine::row_offset(index_) + warp_row;
        if (p_.pass.kind == plan::PassKind::Forward) {
            const auto hidden = [&](int b, uint32_t(&pair)[2][4]) {
                typename Engine::Columns gate, up;
                load_with_bias(gate, e, false, b);
                load_with_bias(up, e, true, b);
#pragma unroll
                for (int i = 0; i < 16; i += 2) {
                    pair[i / 2 % 2][i / 4] =
                        packed({activate(a, gate[i], up[i]), activate(a, gate[i + 1], up[i + 1])});
                }
            };
            store_rows(staging, target(Rows::Hidden, e), row, hidden, NoSides{});
        }
#pragma unroll 1
        for (int which = 0; which < (e.saved_row >= 0 ? 2 : 0); ++which) {
            const bool is_up = which == 1;
            const uint32_t size_mask = is_up ? 0x7fffffffu : 0xffffffffu;
            const auto saved = [&](int b, uint32_t(&pair)[2][4]) {
                typename Engine::Columns sum;
                load_with_bias(sum, e, is_up, b);
#pragma unroll
                for (int i = 0; i < 16; i += 2) {
                    pair[i / 2 % 2][i / 4] =
                        packed_beside({sum[i], sum[i + 1]}, a.limit, [size_mask](float v) {
                            return __uint_as_float(__float_as_uint(v) & size_mask);
                        });
                }
            };
            store_rows(staging, target(is_up ? Rows::Up : Rows::Gate, e), row, saved,
                       Sides{is_up ? Saved::Up : Saved::Gate, a});
        }
    }

    // ---- Down -------------------------------------------------------------------------------
    // y = hidden Wd^T + bd, rounded once, to its home rows, by every warp for its own.
    __device__ void finish_down(const QueueEntry& entry) {
        const int32_t hidden = p_.pass.problem.hidden;
        const int32_t col0 = entry.task.part * plan::kOutCols;
        const Bf16* bias = p_.biases.down_at + int64_t{entry.task.expert} * hidden;
        const int32_t offset = Engine::row_offset(index_);
        Bf16* to[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i] = reinterpret_cast<Bf16*>(entry.home_row[offset + block_row(i)]);
        }
#pragma unroll 1
        for (int block = 0; block < plan::kOutCols / 64; ++block) {
            typename Engine::Columns sum[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int32_t col = 64 * block + Engine::kColumns * i;
                engine_.load(sum[i], col);
                if (p_.biases.down) add_bias(bias, col0 + col, hidden, sum[i]);
            }
            const auto y = [&sum](int j, int h) {
                const int i = 4 * (j % 4) + 2 * h;
                return packed({sum[j / 4][i], sum[j / 4][i + 1]});
            };
            const int32_t col = col0 + 64 * block + 8 * (threadIdx.x % 8);
            put_block(smem_.staging[index_], y, [&](int i, int4 chunk) {
                if (to[i] != nullptr && col < hidden) {
                    *reinterpret_cast<int4*>(to[i] + col) = chunk;
                }
            });
        }
    }

    const BlockScaledForwardParams& p_;
    const BlockScaledExpertMaps& maps_;
    Memory& smem_;
    Engine engine_;
    int index_;
    plan::Task finished_{plan::TaskKind::GateUp, -1, 0, -1, -1};
    uint64_t begin_ = 0, multiplied_ = 0;
};

}  // namespace mok::kernels::block_scaled
