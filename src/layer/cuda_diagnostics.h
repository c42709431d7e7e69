#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/count_rows.h"
#include "kernels/forward_params.h"
#include "layer/cuda_memory.h"
#include "layer/state.h"

namespace mok::layer {

// What the diagnostics ask of a rank's passes on the device, and what they found. The calls that
// read wait for the stream.
class CudaDiagnostics {
  public:
    // counts: where the device adds up rows, zero at first.
    CudaDiagnostics(const Setup& setup, DevicePool& pool);

    void set(const Diagnostics& diagnostics);
    void apply(kernels::PassParams& params) const;
    // Behind a pass.
    void count_rows(const plan::Pass& pass, cudaStream_t stream) const;

    LinkBytes link_bytes(cudaStream_t stream) const;
    // num_traced: as the last pass left it.
    std::vector<TracedTask> trace(uint32_t num_traced, cudaStream_t stream) const;

  private:
    const Setup& setup_;
    DevicePool& pool_;
    Diagnostics diagnostics_;
    Memory trace_;       // kernels::TraceRecord[trace_capacity]
    Memory row_counts_;  // kernels::RowCounts
};

// Reads device memory behind what the stream has.
void read_device(void* to, const void* from, int64_t bytes, cudaStream_t stream);

}  // namespace mok::layer
