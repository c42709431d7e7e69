#pragma once

#include "arch/copy.cuh"
#include "arch/wgmma.cuh"
#include "kernels/forward_params.h"
#include "kernels/layout.cuh"

// The loader role: two warps of every CTA stream each task's operands into shared memory, stage by
// stage. Weights, hidden and the shared expert's x come as tiles. The routed x is gathered row by
// row, so that tokens of this rank are read where they lie: a slot's row is its token's, or its
// ring row.
namespace mok::kernels {

// The operands of a task: A is 128 rows of x or hidden, B two blocks of 128 weight rows.
struct Operands {
    const CUtensorMap *a, *b0, *b1;
    int32_t a_row, b0_row, b1_row, expert;
    int32_t k_blocks;
    bool gathered;  // A's rows are smem.x_row's
};

__device__ inline Operands operands_of(const ForwardParams& p, const ExpertMaps& maps,
                                       const QueueEntry& e) {
    const plan::Problem& problem = p.pass.problem;
    if (e.kind == static_cast<int32_t>(plan::TaskKind::GateUp)) {
        const int32_t row = e.part * plan::kGateUpCols;
        return {&maps.x,
                &maps.gate,
                &maps.up,
                e.row,
                row,
                row,
                e.expert,
                plan::ceil_div(problem.hidden, kTileK),
                p.gathers_own_rows && !e.shared};
    }
    const int32_t row = e.part * plan::kOutCols;
    return {&maps.hidden_load,
            &maps.down,
            &maps.down,
            e.row,
            row,
            row + 128,
            e.expert,
            plan::ceil_div(plan::width_of(problem, e.shared), kTileK),
            false};
}

class Loader {
  public:
    __device__ Loader(const ForwardParams& p, const ExpertMaps& routed, const ExpertMaps& shared,
                      SharedMemory& smem, int index)
        : p_(p), routed_(routed), shared_(shared), smem_(smem), index_(index) {
        stage_.parity = 1;  // all stages are empty
        reads_lead_rows_ = kernels::reads_lead_rows(p);
    }

    __device__ void run() {
        arch::RingState<kQueue> task;
        const bool elected = threadIdx.x % 32 == 0;
        while (true) {
            arch::barrier_wait(&smem_.task_full[task.index], task.parity);
            const QueueEntry entry = smem_.queue[task.index];
            arch::barrier_arrive(&smem_.task_empty[task.index]);
            task.advance();
            if (entry.kind < 0) return;
            const Operands o = operands_of(p_, entry.shared ? shared_ : routed_, entry);
            // The scheduler acquired what the task reads and handed it on by the queue's barrier.
            arch::fence_global_to_copies();
            if (o.gathered) find_rows(entry.tile);
            for (int32_t k = 0; k < o.k_blocks; ++k) {
                arch::barrier_wait(&smem_.empty[stage_.index], stage_.parity);
                if (elected && index_ == 0) load_tiles(o, k);
                if (o.gathered) {
                    gather(k);
                } else {
                    arch::barrier_arrive(&smem_.full[stage_.index]);
                }
                stage_.advance();
            }
        }
    }

  private:
    static constexpr int kThreads = kLoaderThreads;
    static constexpr int kBarrierId = 1 + kConsumers;

    __device__ void load_tiles(const Operands& o, int32_t k) {
        arch::Barrier* full = &smem_.full[stage_.index];
        uint8_t* a = smem_.stage[stage_.index];
        arch::barrier_arrive_expect(full, o.gathered ? kBBytes : kStageBytes);
        if (!o.gathered) arch::load_tile(a, o.a, k * kTileK, o.a_row, 0, full);
        arch::load_tile(a + kABytes, o.b0, k * kTileK, o.b0_row, o.expert, full);
        arch::load_tile(a + kABytes + kBBytes / 2, o.b1, k * kTileK, o.b1_row, o.expert, full);
    }

    // Where the 128 rows of a tile lie.
    __device__ void find_rows(int32_t tile) {
        const plan::Problem& problem = p_.pass.problem;
        const plan::RouteTable& t = p_.pass.table;
        const int64_t row_bytes = int64_t{problem.hidden} * 2;
        arch::group_sync<kThreads>(kBarrierId);  // the last task's rows are no longer read
        for (int r = thread(); r < plan::kTileRows; r += kThreads) {
            const int32_t slot = tile * plan::kTileRows + r, home = t.slot_home[slot];
            const uint8_t* row = nullptr;
            if (home == problem.rank) {
                row = reinterpret_cast<const uint8_t*>(p_.peer_x[home]) +
                      t.slot_route[slot] / problem.top_k * row_bytes;
            } else if (home >= 0) {
                const int32_t at = reads_lead_rows_ ? t.slot_lead[slot] : slot;
                row = reinterpret_cast<const uint8_t*>(p_.ring_x) +
                      plan::ring_row(problem, at) * row_bytes;
            }
            smem_.x_row[r % kLoaderRows][r / kLoaderRows] = reinterpret_cast<uint64_t>(row);
        }
        arch::group_sync<kThreads>(kBarrierId);
    }

    // Block k of A: eight threads copy a row's 128 bytes to where the swizzle has them. A thread's
    // rows are kLoaderRows apart, so the swizzle's r % 8 is the same for all of them.
    __device__ void gather(int32_t k) {
        constexpr int kRows = plan::kTileRows / kLoaderRows, kBatch = 8;
        static_assert(kLoaderRows % 8 == 0 && kRows % kBatch == 0);
        const int c = thread() % 8, r0 = thread() / 8;
        const int32_t col = k * kTileK + 8 * c;
        const bool inside = col < p_.pass.problem.hidden;
        uint32_t to =
            arch::shared_address(smem_.stage[stage_.index]) + r0 * 128 + ((c ^ (r0 & 7)) << 4);
        uint32_t from = arch::shared_address(smem_.x_row[r0]);
#pragma unroll
        for (int batch = 0; batch < kRows / kBatch; ++batch) {
            uint64_t row[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; i += 2) {
                arch::load_shared_pair(from + 8 * i, row[i], row[i + 1]);
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                arch::gather_16_bytes(to + i * kLoaderRows * 128, row[i] + 2 * col,
                                      inside && row[i] != 0);
            }
            from += 8 * kBatch;
            to += kBatch * kLoaderRows * 128;
        }
        arch::arrive_when_gathered(&smem_.full[stage_.index]);
    }

    __device__ int thread() const {
        return 32 * index_ + threadIdx.x % 32;
    }

    const ForwardParams& p_;
    const ExpertMaps& routed_;
    const ExpertMaps& shared_;
    SharedMemory& smem_;
    int index_;
    bool reads_lead_rows_;
    arch::RingState<kStages> stage_;
};

}  // namespace mok::kernels
