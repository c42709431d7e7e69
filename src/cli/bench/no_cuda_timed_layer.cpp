#include "cli/bench/cuda_timed_layer.h"
#include "openmok/error.h"

namespace mok::cli {
namespace {

constexpr const char* kNoCuda = "bench: expected a build with the CUDA backend, found one without";

}  // namespace

std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Device&) {
    throw Error(kNoCuda);
}
std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Group&) {
    throw Error(kNoCuda);
}

}  // namespace mok::cli
