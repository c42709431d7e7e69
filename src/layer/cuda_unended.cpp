#include "layer/cuda_unended.h"

#include <mutex>
#include <vector>

#include "openmok/error.h"

namespace mok::layer {
namespace {

std::mutex mutex;
std::vector<cudaEvent_t> given_up;  // each behind what a stream held

}  // namespace

void give_up(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
        cudaEventRecord(event, stream) == cudaSuccess) {
        given_up.push_back(event);
    }
}

bool has_unended_kernels() {
    const std::lock_guard lock(mutex);
    std::erase_if(given_up, [](cudaEvent_t event) {
        if (cudaEventQuery(event) == cudaErrorNotReady) return false;
        cudaEventDestroy(event);
        return true;
    });
    cudaGetLastError();  // an event that was asked too early is no error
    return !given_up.empty();
}

void refuse_unended_kernels() {
    if (!has_unended_kernels()) return;
    throw Error(
        "workspace: a kernel of this process has not ended; nothing can be run on its GPU any "
        "more");
}

}  // namespace mok::layer
