#include "layer/device_copy.h"
#include "layer/engine.h"
#include "layer/gpu_architectures.h"

// What a build without a CUDA toolkit says of CUDA.
namespace mok {
namespace {

constexpr const char* kNoCuda = "CUDA: expected a build with a CUDA toolkit, found one without";

}  // namespace

std::string why_no_cuda(int) {
    return kNoCuda;
}
int count_cuda_devices() {
    return 0;
}
bool has_cuda_backend() {
    return false;
}
std::vector<std::string> cuda_architectures() {
    return {};
}

std::vector<Group> Group::cuda_virtual(int, int, GroupOptions) {
    throw Error(kNoCuda);
}
Group Group::cuda_from_environment(GroupOptions) {
    throw Error(kNoCuda);
}
Group Group::cuda_connect(const MeetingPoint&, const Seat&, int, GroupOptions) {
    throw Error(kNoCuda);
}

namespace layer {

std::vector<GpuArchitecture> gpu_architectures() {
    return {};
}
std::shared_ptr<Engine> make_cuda_engine(const Setup&) {
    throw Error(kNoCuda);
}
Memory cuda_memory(const Device&, int64_t) {
    throw Error(kNoCuda);
}
void copy_to_cuda(const Device&, void*, const void*, int64_t) {
    throw Error(kNoCuda);
}
void copy_from_cuda(const Device&, void*, const void*, int64_t) {
    throw Error(kNoCuda);
}

}  // namespace layer

}  // namespace mok
