#pragma once

#include "kernels/fp8_params.h"
#include "kernels/layout.cuh"
#include "plan/task.h"

// Shape of a CTA of the FP8 forward. The roles are those of the BF16 kernel (layout.cuh): warp 1
// exchanges, warp 2 schedules, warp 0 loads, warpgroups 1 and 2 multiply.
//
// A block of k is 128 elements, 128 bytes a row: what a scale covers, what the swizzle spans and
// what BF16 has in 64. So a tile of 128 x 256 takes the same bytes a block as in BF16, 48 KB in the
// 1,024 cycles of its products, 47 a cycle, which is what the L2 cache gives to 132
// multiprocessors; a smaller tile would wait for it (128 x 128: 64 a cycle). FP32 sums of
// 64 x 256 are 128 registers of a thread. Beside them fit two partial sums of 64 x 64, 32 registers
// each, and 64 rows of A, 16 registers, which are then read from shared memory once for all
// columns: 80 KB of reads and 48 KB of writes a block, 1,024 cycles (with A in shared memory the
// reads would be 128 KB).
namespace mok::kernels::fp8 {

inline constexpr int kTileK = 128;
inline constexpr int kStages = 4;
inline constexpr int kConsumers = 2;
inline constexpr int kMoverRegisters = 40;
inline constexpr int kConsumerRegisters = 232;
inline constexpr int kExchangeBuffers = 4;

inline constexpr int kABytes = plan::kTileRows * kTileK;
inline constexpr int kBBytes = plan::kOutCols * kTileK;
inline constexpr int kStageBytes = kABytes + kBBytes;
inline constexpr int kScaleBytes = plan::kTileRows * 4;  // of A's rows, a block of k
inline constexpr int kStagingBytes = 64 * 128;           // 64 rows of 128 bytes a consumer

// What the first thread of a consumer keeps of the task whose stores are under way, and of the one
// that is being worked on. In shared memory, for its registers hold sums.
struct ConsumerTask {
    plan::Task finished;  // tile -1: none
    uint64_t finished_begin, multiplied;
    uint64_t begin;
};

// Shared memory of a CTA, at a multiple of 1024 bytes (the swizzle's period).
struct SharedMemory {
    alignas(1024) uint8_t stage[kStages][kStageBytes];         // A then B of every stage
    alignas(1024) uint8_t staging[kConsumers][kStagingBytes];  // results on their way out
    alignas(128) uint8_t exchange[kExchangeBuffers][3584];
    alignas(128) float row_scale[kStages][plan::kTileRows];  // of A's rows
    float weight_scale[kStages][2];                          // of B's two blocks of 128 rows
    arch::Barrier full[kStages], empty[kStages];
    arch::Barrier task_full[kQueue], task_empty[kQueue];
    arch::Barrier row_full[kExchangeBuffers];
    QueueEntry queue[kQueue];
    ConsumerTask task[kConsumers];
    uint8_t* home_row[kConsumers][64];  // where a Down task's rows of y go, null: nowhere
};
inline constexpr int kSharedBytes = sizeof(SharedMemory) + 1024;
static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");

}  // namespace mok::kernels::fp8
