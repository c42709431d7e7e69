#pragma once

#include "kernels/forward_params.h"
#include "kernels/table_builder.h"
#include "layer/cuda_memory.h"
#include "layer/state.h"

namespace mok::layer {

// Where the kernels of a rank report what went wrong, and how that becomes an exception.
class CudaFaults {
  public:
    explicit CudaFaults(const Setup& setup) : setup_(setup) {}

    kernels::FaultRecord* record() const { return fault_.get(); }
    kernels::TableReport* table_report() const { return report_.get(); }

    // Breaks the group where a wait expired, and throws the TimeoutError of a broken group. Asks
    // host memory only.
    void throw_if_broken();
    // Throws the ShapeError of what a route table could not be built from, once. Called when the
    // device is done.
    void throw_table_report();

  private:
    const Setup& setup_;
    PinnedValue<kernels::FaultRecord> fault_;
    PinnedValue<kernels::TableReport> report_;
};

}  // namespace mok::layer
