#pragma once

#include <cuda_bf16.h>

#include "arch/copy.cuh"
#include "arch/wgmma.cuh"
#include "kernels/layout.cuh"
#include "kernels/waiting.cuh"
#include "math/activation_math.h"

// The consumer role: two warpgroups multiply, 64 rows of the tile each, and finish their half in
// registers. Thread t holds rows 16 (t / 32) + (t % 32) / 4 and that + 8, see wgmma.cuh.
namespace mok::kernels {

// ---- Products -----------------------------------------------------------------------------------
// sum[64, 256] over all k blocks of a task, in order. The tensor core is fed one stage ahead of the
// stage that is given back. `meanwhile` is called once while it works.
template <class Meanwhile>
__device__ inline void multiply(SharedMemory& smem, arch::RingState<kStages>& stage, int consumer,
                                int32_t k_blocks, float (&sum)[128], Meanwhile&& meanwhile) {
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
        if (k > 0 && first) arch::barrier_arrive(&smem.empty[previous]);
        if (k == 1) meanwhile();
        previous = stage.index;
        stage.advance();
    }
    arch::wgmma_wait<0>();
    if (first) arch::barrier_arrive(&smem.empty[previous]);
}

// ---- Results ------------------------------------------------------------------------------------
// Eight columns' two values of each of the thread's two rows.
struct Pair {
    float low, high;
};

// Sends a [64, 64] block of BF16 results out: value(j, h) gives columns 8j + 2 (t % 4) and the next
// of row half h, j < 8. The block goes through this consumer's staging and a tile store.
template <class Value>
__device__ inline void store_block(uint8_t* staging, int consumer, const CUtensorMap* map,
                                   int32_t col, int32_t row, Value&& value) {
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const uint32_t base = arch::shared_address(staging);
    if (thread == 0) arch::wait_stores_read<0>();
    arch::warpgroup_sync(1 + consumer);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int j0 = 0; j0 < 8; j0 += 4) {
            uint32_t v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const Pair p = value(j0 + j, h);
                const __nv_bfloat162 packed = __floats2bfloat162_rn(p.low, p.high);
                v[j] = *reinterpret_cast<const uint32_t*>(&packed);
            }
            // 16-byte chunk c of row r lies at c ^ (r % 8): the swizzle of the store's tensor map.
            const int r = 16 * warp + 8 * h + lane % 8, c = j0 + lane / 8;
            arch::store_matrix_x4(base + r * 128 + ((c ^ (r & 7)) << 4), v);
        }
    }
    arch::fence_shared_to_copies();
    arch::warpgroup_sync(1 + consumer);
    if (thread == 0) {
        arch::store_tile(map, col, row, 0, staging);
        arch::commit_stores();
    }
}

// Two neighbouring elements of a BF16 vector, zeros past its end or where there is none.
__device__ inline Pair bias_pair(bool there, const Bf16* at, int32_t col, int32_t cols) {
    if (!there || col >= cols) return {0.0f, 0.0f};
    return {to_f32(at[col]), to_f32(at[col + 1])};
}

static_assert(kConsumers == plan::kComputeArrivals);

// ---- Tasks --------------------------------------------------------------------------------------
class Consumer {
  public:
    __device__ Consumer(const ForwardParams& p, const ExpertMaps& routed, const ExpertMaps& shared,
                        SharedMemory& smem, int index)
        : p_(p), routed_(routed), shared_(shared), smem_(smem), index_(index) {}

    __device__ void run() {
        arch::RingState<kStages> stage;
        arch::RingState<kQueue> queue;
        while (true) {
            // A finished tile's stores complete while the next tile multiplies; with no next tile
            // at hand they are told first, for another CTA may be waiting.
            if (!arch::barrier_try_wait(&smem_.task_full[queue.index], queue.parity)) {
                tell_finished();
                arch::barrier_wait(&smem_.task_full[queue.index], queue.parity);
            }
            const QueueEntry entry = smem_.queue[queue.index];
            arch::warpgroup_sync(1 + index_);
            if (threadIdx.x % 128 == 0) arch::barrier_arrive(&smem_.task_empty[queue.index]);
            queue.advance();
            if (entry.kind < 0) break;

            const uint64_t begin = p_.traced ? arch::nanoseconds() : 0;
            float sum[128];
            const bool gate_up = entry.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
            const int32_t depth =
                gate_up ? p_.pass.problem.hidden : plan::width_of(p_.pass.problem, entry.shared);
            multiply(smem_, stage, index_, plan::ceil_div(depth, kTileK), sum,
                     [this] { tell_finished(); });
            tell_finished();
            gate_up ? finish_gate_up(entry, sum) : finish_down(entry, sum);
            finished_ = {static_cast<plan::TaskKind>(entry.kind), entry.tile, entry.part, -1, -1};
            begin_ = begin;
        }
        tell_finished();
    }

  private:
    // Thread 0: the stores of the last task are complete; its arrival makes them visible.
    __device__ void tell_finished() {
        if (threadIdx.x % 128 == 0 && finished_.tile >= 0) {
            arch::wait_stores_done();
            arch::fence_global_to_copies();
            plan::for_each_arrival(p_.pass, finished_, [&](plan::Arrival a) {
                a.count = 1;  // this half of plan::kComputeArrivals
                arrive(p_, a);
            });
            if (p_.traced && index_ == 0) trace_task(p_, finished_, begin_);
        }
        finished_.tile = -1;
    }

    // gate = x Wg^T + bg, up = x Wu^T + bu; hidden = activate(gate, up) from the FP32 sums.
    __device__ void finish_gate_up(const QueueEntry& e, float (&sum)[128]) {
        const ExpertMaps& maps = e.shared ? shared_ : routed_;
        const int32_t width = plan::width_of(p_.pass.problem, e.shared);
        const int32_t col0 = e.part * plan::kGateUpCols, col_lane = 2 * (threadIdx.x % 4);
        const int32_t row = e.row + 64 * index_;
        uint8_t* staging = smem_.staging[index_];
        if (!e.shared && (p_.biases.gate || p_.biases.up)) {
            const int64_t at = int64_t{e.expert} * width;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const int32_t col = col0 + 8 * j + col_lane;
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
        const Activation a = p_.activation;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t col = col0 + 64 * half;
            if (col >= width) break;
            store_block(staging, index_, &maps.hidden_store, col, row, [&](int j, int h) -> Pair {
                const int i = 4 * (8 * half + j) + 2 * h;
                return {activate(a, sum[i], sum[64 + i]), activate(a, sum[i + 1], sum[65 + i])};
            });
        }
        if (e.saved_row < 0) return;
        const int32_t saved_row = e.saved_row + 64 * index_;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t col = col0 + 64 * half;
            if (col >= width) break;
            store_block(
                staging, index_, &maps.gate_save, col, saved_row, [&](int j, int h) -> Pair {
                    const int i = 4 * (8 * half + j) + 2 * h;
                    return {to_f32(saved_gate(a, sum[i])), to_f32(saved_gate(a, sum[i + 1]))};
                });
            store_block(staging, index_, &maps.up_save, col, saved_row, [&](int j, int h) -> Pair {
                const int i = 64 + 4 * (8 * half + j) + 2 * h;
                return {to_f32(saved_up(a, sum[i])), to_f32(saved_up(a, sum[i + 1]))};
            });
        }
    }

    // y = hidden Wd^T + bd, rounded once.
    __device__ void finish_down(const QueueEntry& e, float (&sum)[128]) {
        const ExpertMaps& maps = e.shared ? shared_ : routed_;
        const int32_t hidden = p_.pass.problem.hidden;
        const int32_t col0 = e.part * plan::kOutCols, col_lane = 2 * (threadIdx.x % 4);
        const bool biased = !e.shared && p_.biases.down;
        const Bf16* bias = p_.biases.down_at + int64_t{e.expert} * hidden;
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            const int32_t col = col0 + 64 * block;
            if (col >= hidden) break;
            store_block(smem_.staging[index_], index_, &maps.out_store, col, e.row + 64 * index_,
                        [&](int j, int h) -> Pair {
                            const int i = 4 * (8 * block + j) + 2 * h;
                            const Pair b = bias_pair(biased, bias, col + 8 * j + col_lane, hidden);
                            return {sum[i] + b.low, sum[i + 1] + b.high};
                        });
        }
    }

    const ForwardParams& p_;
    const ExpertMaps& routed_;
    const ExpertMaps& shared_;
    SharedMemory& smem_;
    int index_;
    plan::Task finished_{plan::TaskKind::GateUp, -1, 0, -1, -1};
    uint64_t begin_ = 0;
};

}  // namespace mok::kernels
