#pragma once

#include "arch/copy.cuh"
#include "arch/wgmma_fp8.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/pair.cuh"

// The products of a consumer of the FP8 forward: sums of blocks of 128 along K, each formed by the
// tensor cores from zero and added in FP32 with its scales, in order:
//     sum = fma(partial, scale of the row * scale of the weights' block, sum)
namespace mok::kernels::fp8 {

// A consumer multiplies 64 columns at a time, into one of two partial sums: one is added while the
// tensor cores work on the other.
inline constexpr int kChunkCols = 64;
inline constexpr int kChunks = plan::kOutCols / kChunkCols;

// sum's columns of a chunk += partial * scale; scale[h] is that of row half h.
template <int kChunk>
__device__ inline void add_scaled(float (&sum)[128], float (&partial)[32],
                                  const float (&scale)[2]) {
    arch::settle(partial);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        sum[32 * kChunk + i] = fmaf(partial[i], scale[i / 2 % 2], sum[32 * kChunk + i]);
    }
}

// What a consumer multiplies of one stage: its 64 rows of A, which lie in registers, so that shared
// memory is read once for all columns.
struct StageRows {
    uint32_t a[kTileK / 32][4];
    uint64_t b;         // descriptor of B's first rows
    float scale[2][2];  // of B's two blocks of 128 columns, of this thread's two rows
};

// This thread's places in every stage, in bytes.
struct Places {
    uint32_t a;    // of its row of A's first 32 elements, for load_matrix_x4
    uint32_t row;  // of the scale of its first row
};
__device__ inline Places places_of(int consumer) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int first = 64 * consumer + 16 * (thread / 32);
    // Lane l gives row l % 8 of block l / 8: rows 8 (block % 2).., 16-byte chunk block / 2; chunk c
    // of row r lies at c ^ (r % 8).
    const int block = lane / 8, row = first + 8 * (block % 2) + lane % 8;
    return {static_cast<uint32_t>(row * 128 + ((block / 2 ^ (row & 7)) << 4)),
            static_cast<uint32_t>((first + lane / 4) * 4)};
}

__device__ inline StageRows rows_of_stage(SharedMemory& smem, int index, const Places& places) {
    const uint32_t a = arch::shared_address(smem.stage[index]);
    StageRows at;
#pragma unroll
    for (int step = 0; step < kTileK / 32; ++step) {
        // Two chunks on, under the swizzle: stages lie at multiples of 1024.
        arch::load_matrix_x4((a + places.a) ^ (step << 5), at.a[step]);
    }
    at.b = arch::k_major_descriptor(a + kABytes);
    const uint32_t row = arch::shared_address(smem.row_scales(index)) + places.row;
    const uint32_t of_rows[2] = {arch::load_shared_word(row), arch::load_shared_word(row + 8 * 4)};
    const uint32_t weights = arch::shared_address(smem.weight_scale[index]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float weight = __uint_as_float(arch::load_shared_word(weights + 4 * i));
        at.scale[i][0] = __uint_as_float(of_rows[0]) * weight;
        at.scale[i][1] = __uint_as_float(of_rows[1]) * weight;
        arch::settle(at.scale[i]);  // read before the products that hold the warps together
    }
    return at;
}

template <int kChunk>
__device__ inline void issue(const StageRows& at, float (&partial)[32]) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 32; ++step) {
        arch::wgmma_m64n64k32_e4m3(
            partial, at.a[step], at.b + kChunk * (kChunkCols * kTileK >> 4) + 2 * step, step != 0);
    }
    arch::wgmma_commit();
}

// sum[64, 256] over all k blocks of a task. As multiply of BF16: a stage is given back by one
// thread, for the products hold the warps of the consumer together; `meanwhile` is called behind
// the second block, before the first where that has not come yet, and again at the end.
template <class Meanwhile>
__device__ inline void multiply(SharedMemory& smem, const StageOwners& owners,
                                arch::RingState<kStages>& stage, int consumer, int32_t k_blocks,
                                float (&sum)[128], Meanwhile&& meanwhile) {
    static_assert(kChunks == 4);
    const Places places = places_of(consumer);
#pragma unroll
    for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
    // The last chunk of a block is added while the operands of the next are on their way; before
    // the first block it is nothing.
    float even[32], odd[32] = {}, last[2] = {};
    if (!arch::barrier_is_past(&smem.full[stage.index], stage.parity)) meanwhile();
    // Two rounds of one loop, `meanwhile` between them: inside the loop it would cost registers.
    int32_t k = 0;
#pragma unroll 1
    for (int32_t end = min(k_blocks, 2); k < k_blocks; end = k_blocks) {
#pragma unroll 1
        for (; k < end; ++k) {
            arch::barrier_wait(&smem.full[stage.index], stage.parity);
            StageRows at = rows_of_stage(smem, stage.index, places);
            add_scaled<3>(sum, odd, last);
            issue<0>(at, even);
            issue<1>(at, odd);
            arch::wgmma_wait<1>();
            add_scaled<0>(sum, even, at.scale[0]);
            issue<2>(at, even);
            arch::wgmma_wait<1>();
            add_scaled<1>(sum, odd, at.scale[0]);
            issue<3>(at, odd);
            arch::wgmma_wait<1>();
            add_scaled<2>(sum, even, at.scale[1]);
            last[0] = at.scale[1][0];
            last[1] = at.scale[1][1];
            arch::wgmma_wait<0>();
            arch::settle(odd);
            if (threadIdx.x % 128 == 0) owners.give_back(stage.index);
            stage.advance();
        }
        meanwhile();
    }
    add_scaled<3>(sum, odd, last);
}

}  // namespace mok::kernels::fp8
