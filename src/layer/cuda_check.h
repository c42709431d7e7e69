#pragma once

#include <array>

#include "layer/engine.h"

namespace mok::layer {

// Every tensor of a call, and of a schedule, lies where a device can read it: throws ShapeError
// with one sentence (which tensor, expected, found). The driver is asked about an address once:
// it is taken for device memory as long as it is remembered, freed or not.
class PlaceCheck {
  public:
    explicit PlaceCheck(int device) : device_(device) {}
    void require(const char* name, const ConstTensor& t);
    void require(const PassArguments& a);

  private:
    int device_;
    std::array<const void*, 512> known_{};  // by the address's hash
};

// The kernels write rows of gradients in pieces of 16 bytes: their strides and addresses must be
// multiples of that, those of biases and router gradients excepted.
void check_cuda_gradients(const PassArguments& a);

// What the CUDA backend does not take of a shape and tuning, and of diagnostics.
void check_cuda_tuning(const Setup& setup);
// Refuses a precision that a GPU has no kernel for. has_block_scales: its tensor cores do.
void check_cuda_precision(const Setup& setup, bool has_block_scales);
void check_cuda_diagnostics(const Diagnostics& diagnostics);

}  // namespace mok::layer
