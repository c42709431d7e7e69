#pragma once

#include <memory>

#include "cli/bench/timed_layer.h"
#include "openmok/group.h"

namespace mok::cli {

// The layer on one GPU, by as many virtual ranks as a case asks for. Throws Error where the device
// cannot be used, and in a build without CUDA.
std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Device& device);

// The layer by processes with a GPU each, for cases of as many ranks; every call is collective. In
// a trace every rank's first task begins at 1 ns, for the clocks of GPUs differ.
std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Group& processes);

}  // namespace mok::cli
