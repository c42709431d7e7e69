#include "layer/cuda_unended.h"

#include <mutex>
#include <thread>
#include <vector>

#include "openmok/error.h"

namespace mok::layer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLookEvery{100};

struct Doubtful {
    cudaEvent_t event;  // behind what the stream held
    Clock::time_point deadline;
};

std::mutex mutex;
std::vector<Doubtful> all_doubtful;

// An event that is asked too early is no error; one that an error ended has ended.
bool has_ended(cudaEvent_t event) {
    const bool ended = cudaEventQuery(event) != cudaErrorNotReady;
    cudaGetLastError();
    return ended;
}

bool ends_in_time(const Doubtful& doubtful) {
    while (!has_ended(doubtful.event)) {
        if (Clock::now() >= doubtful.deadline) return false;
        std::this_thread::sleep_for(kLookEvery);
    }
    return true;
}

}  // namespace

void doubt(cudaStream_t stream, Clock::duration patience) {
    const std::lock_guard lock(mutex);
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
        cudaEventRecord(event, stream) == cudaSuccess) {
        all_doubtful.push_back({event, Clock::now() + patience});
    }
    cudaGetLastError();
}

bool has_unended_kernels() {
    const std::lock_guard lock(mutex);
    std::erase_if(all_doubtful, [](const Doubtful& doubtful) {
        if (!ends_in_time(doubtful)) return false;
        cudaEventDestroy(doubtful.event);
        return true;
    });
    return !all_doubtful.empty();
}

void refuse_unended_kernels() {
    if (!has_unended_kernels()) return;
    throw Error(
        "workspace: a kernel of this process has not ended; nothing can be run on its GPU any "
        "more");
}

}  // namespace mok::layer
