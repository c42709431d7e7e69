#pragma once

#include "arch/copy.cuh"
#include "kernels/for_each_constant.cuh"
#include "kernels/forward_params.h"
#include "kernels/layout.cuh"

// The gather role: one warp of every CTA reads the rows of a routed GateUp task's x where they lie,
// a slot's row being its token's or a row of the ring, into the stages' A.
namespace mok::kernels {

// Columns [col, col + 64) of 128 rows to where the swizzle has them: eight lanes copy 128 bytes of
// a row, four rows at once. there: bit i says whether this lane's row i is read, else it becomes
// zeros.
__device__ inline void gather_block(uint32_t stage, uint32_t addresses, int32_t col,
                                    uint32_t there) {
    constexpr int kRows = plan::kTileRows / kGatherRows, kBatch = 8;
    static_assert(kRows == 32 && kGatherRows == 4, "a bit a row; rows r and r + 8 swizzle alike");
    const int lane = threadIdx.x % 32, c = lane % 8, r0 = lane / 8;
    // 16-byte chunk c of row r lies at c ^ (r % 8), and r is r0 or r0 + 4 in turn.
    const uint32_t even = stage + r0 * 128 + ((c ^ r0) << 4);
    const uint32_t odd = stage + (r0 + 4) * 128 + ((c ^ (r0 + 4)) << 4);
    const uint32_t byte = 2 * (col + 8 * c);
    for_each_constant<kRows / kBatch>([&](auto batch) {
        constexpr int kFirst = batch.value * kBatch;
        uint64_t row[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; i += 2) {
            arch::load_shared_pair(addresses + 8 * (kFirst + i), row[i], row[i + 1]);
        }
        for_each_constant<kBatch>([&](auto i) {
            constexpr int kAt = kFirst + i.value;
            arch::gather_16_bytes<kAt>((kAt % 2 == 0 ? even : odd) + kAt / 2 * 1024,
                                       row[i.value] + byte, there);
        });
    });
}

__device__ inline void run_gather(const ForwardParams& p, ForwardSharedMemory& smem) {
    const int lane = threadIdx.x % 32;
    const int32_t hidden = p.pass.problem.hidden;
    arch::RingState<kQueue> task;
    arch::RingState<kStages> stage;
    stage.parity = 1;  // all stages are empty
    while (true) {
        arch::barrier_wait(&smem.task_full[task.index], task.parity);
        const QueueEntry& entry = smem.queue[task.index];
        if (entry.kind < 0) return;
        const int32_t k_blocks = entry.k_blocks;
        const uint32_t addresses =
            arch::shared_address(entry.address + lane / 8 * (plan::kTileRows / kGatherRows));
        uint32_t there = 0;
        if (entry.gathers) {
            for (int i = 0; i < plan::kTileRows / kGatherRows; ++i) {
                there |= (kGatherRows * i + lane / 8 < entry.rows ? 1u : 0u) << i;
            }
        }
        const bool gathers = entry.gathers;
        for (int32_t k = 0; k < k_blocks; ++k) {
            arch::barrier_wait(&smem.empty[stage.index], stage.parity);
            if (gathers) {
                const bool inside = k * kTileK + 8 * (lane % 8) < hidden;
                gather_block(arch::shared_address(smem.stage[stage.index]), addresses, k * kTileK,
                             inside ? there : 0);
                arch::arrive_when_gathered(&smem.full[stage.index]);
            } else {
                __syncwarp();  // before the arrival that lets the stage go on
                if (lane == 0) arch::barrier_arrive_many(&smem.full[stage.index], 32);
            }
            stage.advance();
        }
        __syncwarp();  // the addresses are read
        if (lane == 0) arch::barrier_arrive(&smem.task_empty[task.index]);
        task.advance();
    }
}

}  // namespace mok::kernels
