#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plan/problem.h"

namespace mok::comm {

struct RankBarrierFault {
    int32_t rank;
    int32_t late_rank;
    uint64_t epoch;  // barriers that this rank had come to, this one included
    uint64_t waited_ns;
};

// Pinned host memory, written by the kernel except for `stop`.
struct RankBarrierReport {
    uint32_t is_waiting;  // 1: a barrier has waited for a millisecond or longer
    int32_t late_rank;    // for this rank, or another one
    uint32_t has_fault;   // 1: fault is complete, and stays
    RankBarrierFault fault;
    uint32_t stop;  // 1: the host wants no more waiting
};

struct RankBarrierParams {
    int32_t rank, num_ranks;
    // [R] pointers to barrier_flags of each rank's window: flags[r][s] is the last epoch at which
    // rank s has come, written by s alone, read by r.
    uint64_t* flags[plan::kMaxRanks];
    uint64_t* epoch;  // [1] device memory: barriers that this rank has come to
    uint32_t* aborted;
    RankBarrierReport* report;
    uint64_t timeout_ns;
};

// Loads the kernel: a first launch may wait for kernels that run, and so for another rank.
cudaError_t load_rank_barrier();
cudaError_t launch_rank_barrier(const RankBarrierParams& params, cudaStream_t stream);

}  // namespace mok::comm
