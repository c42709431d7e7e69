#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <map>

#include "layer/memory.h"
#include "openmok/device.h"

namespace mok::cli {

// Fills device memory with BF16 numbers ~ N(0, deviation^2). They are drawn once for a deviation, a
// few million, and repeated; the block's length is a prime, so that no two rows are equal.
class CudaNormals {
  public:
    CudaNormals(const Device& device, std::initializer_list<double> deviations);

    // Fills `tensor` with elements [first, first + elements) of the endless sequence that `seed`
    // names: parts of one tensor on several ranks are the parts of the whole. `deviation` is one of
    // the constructor's. Waits until it is done.
    struct Part {
        uint64_t seed;
        int64_t first, elements;
    };
    void fill(void* tensor, const Part& part, double deviation) const;

  private:
    Device device_;
    std::map<double, layer::Memory> blocks_;
};

}  // namespace mok::cli
