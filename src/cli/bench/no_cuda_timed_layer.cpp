#include "cli/bench/cuda_timed_layer.h"
#include "openmok/error.h"

namespace mok::cli {

std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Device&) {
    throw Error("bench: expected a build with the CUDA backend, found one without");
}

}  // namespace mok::cli
