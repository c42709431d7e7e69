#pragma once

#include "layer/engine.h"

namespace mok::layer {

// Every tensor of a call, and of a schedule, lies where a device can read it: throws ShapeError
// with one sentence (which tensor, expected, found).
void check_on_device(int device, const char* name, const ConstTensor& t);
void check_on_device(int device, const PassArguments& a);

// The kernels write rows of gradients in pieces of 16 bytes: their strides and addresses must be
// multiples of that, those of biases and router gradients excepted.
void check_cuda_gradients(const PassArguments& a);

// What the CUDA backend does not take of a shape and tuning, and of diagnostics.
void check_cuda_tuning(const Setup& setup);
void check_cuda_diagnostics(const Diagnostics& diagnostics);

}  // namespace mok::layer
