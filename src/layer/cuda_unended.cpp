#include "layer/cuda_unended.h"

#include <mutex>
#include <vector>

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

}  // namespace mok::layer
