#pragma once

#include "arch/cluster.cuh"
#include "plan/problem.h"

namespace mok::kernels {

// ---- Shape of a CTA -----------------------------------------------------------------------------
// Warpgroup 0 moves data, warpgroups 1 and 2 multiply: 64 rows of a tile each.
inline constexpr int kThreads = 384;
inline constexpr int kLoaderWarp = 0;     // operands, global -> shared memory
inline constexpr int kExchangeWarp = 1;   // rows between ranks
inline constexpr int kSchedulerWarp = 2;  // claims tasks, waits for their signals
inline constexpr int kTellerWarp = 3;     // makes finished tasks known
inline constexpr int kConsumers = 2;

// Registers of a thread behind the launch, multiples of 8. What the movers lack lies in local
// memory, which the L2 cache serves, for every acquire empties the L1 cache; consumers that
// quantise need more.
template <int Movers, int Consumers>
struct RegisterSplit {
    static constexpr int kMovers = Movers, kConsumers = Consumers;
    static_assert(128 * Movers + 256 * Consumers <= kThreads * 168, "what the launch has");
};
using Bf16Registers = RegisterSplit<88, 208>;
using Fp8Registers = RegisterSplit<56, 224>;

inline constexpr int kTileK = 64;
inline constexpr int kStages = 4;
inline constexpr int kQueue = 3;    // tasks between scheduler and the others
inline constexpr int kTickets = 2;  // between the schedulers of a pair
inline constexpr int kExchangeBytes = 14336;
inline constexpr int kBatches = 2;  // of rows, under way at once

inline constexpr int kABytes = plan::kTileRows * kTileK * 2;
inline constexpr int kBBytes = plan::kOutCols * kTileK * 2;
inline constexpr int kStageBytes = kABytes + kBBytes;
inline constexpr int kStagingCols = 64;
inline constexpr int kStagingBytes = 64 * kStagingCols * 2;  // one 64 x 64 block a consumer

// Shared memory of a CTA of every pass, at a multiple of 1024 bytes (the swizzle's period).
struct SharedMemory {
    uint8_t stage[kStages][kStageBytes];            // A then B of every stage
    uint8_t staging[kConsumers][kStagingBytes];     // results on their way out
    alignas(128) uint8_t exchange[kExchangeBytes];  // rows between memories
    arch::Barrier full[kStages], empty[kStages];
    arch::Barrier peer_empty[kStages];  // by the consumers of the other CTA of a pair
    arch::Barrier ticket_full[kTickets], ticket_empty[kTickets];  // at the second CTA, at the first
    arch::Barrier batch_full[kBatches];
    arch::Barrier stages_given;  // exchange -> loader, once: the stages are free
    uint32_t ticket[kTickets];
};
static_assert(kABytes % 1024 == 0 && kBBytes % 1024 == 0 && kStagingBytes % 1024 == 0);

__device__ inline void init_batches(SharedMemory& smem) {
    for (arch::Barrier& full : smem.batch_full) arch::barrier_init(&full, 1);
}

// A CTA's memory in the dynamic shared memory of a launch, which has 1023 bytes more than it. An
// offset, not a new address: so the compiler knows that all of it is shared memory.
template <class Memory>
__device__ inline Memory& shared_memory_in(uint8_t* dynamic) {
    return *reinterpret_cast<Memory*>(dynamic + (-arch::shared_address(dynamic) & 1023u));
}

// What the scheduler tells the others about a task.
struct TileTask {
    int32_t kind;    // plan::TaskKind, -1: no more
    int32_t expert;  // local expert, 0 for the shared one
    int32_t part;
    int32_t tile;
    int32_t macro;      // its macrobatch, of a routed tile
    int32_t row;        // first row in the ring, or first token
    int32_t saved_row;  // first row in the context, -1: not saved
    int32_t rows;       // real rows, 1..128; of a dry task 0
    int32_t k_blocks;   // stages
    bool shared;        // the shared expert's tile
    bool pushes;        // y's rows go to the addresses of the queue's entry
    bool is_dry;        // only the steps of the other CTA's task: nothing is read, made or told
    bool shares_b;      // both CTAs' tasks have the same weights, each loads half of them for both
};
struct QueueEntry {
    TileTask task;
    uint64_t home_row[plan::kTileRows];  // where every row of y goes, 0: nowhere
};

// Of a task, by the GPU's nanosecond clock.
struct TaskTimes {
    uint64_t begin, multiplied;
};

struct ForwardSharedMemory : SharedMemory {
    QueueEntry queue[kQueue];
    TaskTimes times[kQueue];          // consumer 0 -> teller, where the pass is traced
    arch::Barrier task_done[kQueue];  // consumers -> teller: what the task stored
    arch::Barrier task_full[kQueue], task_empty[kQueue];  // scheduler -> all readers -> scheduler
};
inline constexpr int kForwardSharedBytes = sizeof(ForwardSharedMemory) + 1024;
static_assert(kForwardSharedBytes <= 232448, "227 KB of shared memory a CTA");

}  // namespace mok::kernels
