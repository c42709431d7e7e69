#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/cuda/rank_barrier_params.h"

namespace mok::comm {

// The ranks' meeting on their devices, without the host: what a rank's stream did before it is
// visible to what every rank's stream does after it. Bounded: when a rank does not come, the
// device's `aborted` word is set and fault() says who was late. Use by one thread at a time.
//
// For one rank per GPU. Ranks that share a GPU meet only while their kernels run at the same time,
// which CUDA does not promise. On an H200 up to 4 streams met in every run; 8 did not, with
// CUDA_DEVICE_MAX_CONNECTIONS as it is and at 32, nor did 5 and 7: by their faults' epochs, one
// rank's first barrier ran only after the bound had ended the others'.
class RankBarrier {
  public:
    // flags[r], r < R: barrier_flags of rank r's window ([R] u64, zero at first) as this device
    // addresses it. aborted: a word of this device, nonzero once anything has failed; a rank that
    // finds it set comes to no barrier any more. On the current device.
    RankBarrier(int rank, const std::vector<uint64_t*>& flags, uint32_t* aborted,
                std::chrono::duration<double> timeout);
    ~RankBarrier();
    RankBarrier(const RankBarrier&) = delete;
    RankBarrier& operator=(const RankBarrier&) = delete;

    // One kernel of one block; may be captured into a graph, which may be launched any number of
    // times. Every rank enqueues the same barriers in the same order.
    void enqueue(cudaStream_t stream);

    // Without waiting, from memory that the device writes:
    // The rank that a barrier has been waiting for since a millisecond ago or longer.
    std::optional<int> late_rank() const;
    // What has ended this rank's barriers.
    std::optional<RankBarrierFault> fault() const;
    // Ends a wait that is under way, and every later one, at once: for a host that knows that a
    // rank is lost.
    void stop();

  private:
    RankBarrierParams params_{};
    RankBarrierReport* report_ = nullptr;  // pinned host memory
    uint64_t* epoch_ = nullptr;            // device memory
};

// "rank 0 waited 2.0 s at the barrier before a pass and rank 3 did not come; the group is broken"
std::string sentence(const RankBarrierFault& fault, const char* what);

}  // namespace mok::comm
