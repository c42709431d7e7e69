#pragma once

#include <memory>

#include "cli/bench/timed_layer.h"
#include "openmok/device.h"

namespace mok::cli {

// The layer on one GPU, by as many virtual ranks as a case asks for. Throws Error where the device
// cannot be used, and in a build without CUDA.
std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Device& device);

}  // namespace mok::cli
