#pragma once

#include <string>

#include "kernels/forward_params.h"
#include "kernels/table_builder.h"
#include "layer/cuda_memory.h"
#include "layer/state.h"
#include "layer/stream_wait.h"

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
    // Whether a wait expired or the group is broken. Asks host memory only.
    bool has_failed() const;
    // True once, when has_failed() is so and no wait was given up.
    bool has_failed_anew();
    WaitBounds wait_bounds() const;
    // Throws the TimeoutError of a wait that was given up, and breaks the group.
    [[noreturn]] void throw_unended(const WaitOutcome& outcome);
    // Throws the ShapeError of what a route table could not be built from, once. Called when the
    // device is done.
    void throw_table_report();

  private:
    std::string fault_sentence() const;
    void break_group(const std::string& sentence);

    const Setup& setup_;
    bool failure_was_told_ = false;
    PinnedValue<kernels::FaultRecord> fault_;
    PinnedValue<kernels::TableReport> report_;
};

}  // namespace mok::layer
