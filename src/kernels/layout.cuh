#pragma once

#include "arch/barrier.cuh"
#include "plan/problem.h"

namespace mok::kernels {

// ---- Shape of a CTA -----------------------------------------------------------------------------
// Warpgroup 0 moves data, warpgroups 1 and 2 multiply: 64 rows of a tile each.
inline constexpr int kThreads = 384;
inline constexpr int kExchangeWarp = 1;   // rows between ranks
inline constexpr int kSchedulerWarp = 2;  // claims tasks, waits for their signals
inline constexpr int kLoaders = 2;        // warps 0 and 3: operands, global -> shared memory
inline constexpr int kLoaderThreads = 32 * kLoaders;
inline constexpr int kLoaderRows = kLoaderThreads / 8;  // gathered at once, eight threads a row
inline constexpr int kConsumers = 2;
inline constexpr int kMoverRegisters = 40;
inline constexpr int kConsumerRegisters = 232;

inline constexpr int kTileK = 64;
inline constexpr int kStages = 4;
inline constexpr int kQueue = 2;  // tasks between scheduler and the others
inline constexpr int kExchangeBuffers = 4;
inline constexpr int kExchangeBytes = 3584;

inline constexpr int kABytes = plan::kTileRows * kTileK * 2;
inline constexpr int kBBytes = plan::kOutCols * kTileK * 2;
inline constexpr int kStageBytes = kABytes + kBBytes;
inline constexpr int kStagingCols = 64;
inline constexpr int kStagingBytes = 64 * kStagingCols * 2;  // one 64 x 64 block a consumer

// What the scheduler tells loaders and consumers about a task.
struct QueueEntry {
    int32_t kind;    // plan::TaskKind, -1: no more
    int32_t shared;  // the shared expert's tile
    int32_t expert;  // local expert, 0 for the shared one
    int32_t part;
    int32_t tile;
    int32_t row;        // first row in the ring, or first token
    int32_t saved_row;  // first row in the context, -1: not saved
    int32_t rows;       // real rows, 1..128
};

// Shared memory of a CTA, at a multiple of 1024 bytes (the swizzle's period).
struct SharedMemory {
    alignas(1024) uint8_t stage[kStages][kStageBytes];         // A then B of every stage
    alignas(1024) uint8_t staging[kConsumers][kStagingBytes];  // results on their way out
    alignas(128) uint8_t exchange[kExchangeBuffers][kExchangeBytes];
    arch::Barrier full[kStages], empty[kStages];
    arch::Barrier task_full[kQueue], task_empty[kQueue];
    arch::Barrier row_full[kExchangeBuffers];
    QueueEntry queue[kQueue];
    // Where a gathered task's rows of x lie, 0: zeros; row r at [r % kLoaderRows][r / kLoaderRows].
    alignas(16) uint64_t x_row[kLoaderRows][plan::kTileRows / kLoaderRows];
    uint8_t* home_row[kConsumers][64];  // where a Down task's rows of y go, null: nowhere
};
inline constexpr int kSharedBytes = sizeof(SharedMemory) + 1024;
static_assert(kSharedBytes <= 232448, "227 KB of shared memory a CTA");

}  // namespace mok::kernels
