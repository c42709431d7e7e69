#pragma once

#include <vector>

#include "layer/memory.h"
#include "openmok/device.h"
#include "openmok/operands.h"

namespace mok::cli {

// A rank's tensors where its group computes: the host's own for a CPU group, copies on the device
// for a CUDA group. They live as long as this.
class DeviceTensors {
  public:
    explicit DeviceTensors(const Device& device) : device_(device) {}

    // What a call reads. Absent stays absent.
    ConstTensor input(const ConstTensor& host);
    Weights input(const Weights& host);
    Inputs input(const Inputs& host);
    // What a call writes; fetch() brings it to `host`. On the device it begins as what the host
    // holds.
    Tensor output(const Tensor& host);
    InputGrads output(const InputGrads& host);
    WeightGrads output(const WeightGrads& host);
    void fetch() const;

  private:
    struct Result {
        Tensor host;
        const void* on_device;
    };
    void* copy(const ConstTensor& host);

    Device device_;
    std::vector<layer::Memory> blocks_;
    std::vector<Result> results_;
};

}  // namespace mok::cli
