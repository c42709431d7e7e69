#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "layer/memory.h"
#include "openmok/device.h"

namespace mok::cli {

// A copy kernel that runs on a stream of its own beside every timed execution, as gradient traffic
// does in a training step: 64 MiB from memory to memory, by 16 thread blocks.
class CopyBeside {
  public:
    static constexpr int64_t kBytes = 64 << 20;
    static constexpr int kBlocks = 16;

    explicit CopyBeside(const Device& device);
    ~CopyBeside();
    CopyBeside(const CopyBeside&) = delete;
    CopyBeside& operator=(const CopyBeside&) = delete;

    // Enqueues the copy; it begins behind `begin`, which has been recorded.
    void start(cudaEvent_t begin);
    // Waits for it and keeps its time from `begin` on.
    void finish(cudaEvent_t begin);
    // Of the executions so far, in milliseconds.
    const std::vector<double>& times() const { return times_; }

  private:
    Device device_;
    layer::Memory memory_;  // the source, then the copy
    cudaStream_t stream_ = nullptr;
    cudaEvent_t end_ = nullptr;
    std::vector<double> times_;
};

}  // namespace mok::cli
