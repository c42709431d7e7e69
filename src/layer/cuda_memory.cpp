#include "layer/cuda_memory.h"

#include <algorithm>
#include <string>

#include "openmok/error.h"

namespace mok::layer {
namespace {

// Lets this thread allocate while it captures a stream: the allocation itself is not captured.
class CaptureRelaxed {
  public:
    CaptureRelaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~CaptureRelaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    CaptureRelaxed(const CaptureRelaxed&) = delete;
    CaptureRelaxed& operator=(const CaptureRelaxed&) = delete;

  private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // a failed launch is not to be found again by somebody else
    throw Error(std::string(what) + ": expected it to succeed, found CUDA error " +
                cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
}

DeviceScope::DeviceScope(int device) {
    check_cuda(cudaGetDevice(&before_), "the current device");
    is_other_ = before_ != device;
    if (is_other_) check_cuda(cudaSetDevice(device), "making a device current");
}
DeviceScope::~DeviceScope() {
    if (is_other_) cudaSetDevice(before_);
}

bool is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    // The default stream cannot be asked while another one is captured, nor be captured itself.
    if (stream == nullptr || stream == cudaStreamLegacy) return false;
    check_cuda(cudaStreamIsCapturing(stream, &status), "the state of a stream");
    return status == cudaStreamCaptureStatusActive;
}

DevicePool::~DevicePool() {
    free_unused();
}

void DevicePool::free_unused() {
    const CaptureRelaxed relaxed;
    if (!has_unended_kernels()) {
        for (const auto& [bytes, data] : unused_) cudaFree(data);
    }
    unused_.clear();
}

std::byte* DevicePool::allocate(int64_t bytes, const char* what) {
    const CaptureRelaxed relaxed;
    const DeviceScope current(device_);
    void* data = nullptr;
    cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation && !unused_.empty()) {
        free_unused();
        error = cudaMalloc(&data, bytes);
    }
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        throw Error(std::string(what) + ": expected " + std::to_string(bytes) +
                    " bytes of memory on CUDA device " + std::to_string(device_) + ", found " +
                    std::to_string(free) + " free of " + std::to_string(total));
    }
    check_cuda(error, what);
    return static_cast<std::byte*>(data);
}

Memory DevicePool::take(int64_t bytes, const char* what) {
    constexpr int64_t kGrain = 4096;
    const int64_t wanted = std::max(kGrain, (bytes + kGrain - 1) / kGrain * kGrain);
    std::lock_guard lock(mutex_);
    std::byte* data = nullptr;
    int64_t size = wanted;
    // A much larger block would be missed where it is needed.
    const auto fits = unused_.lower_bound(wanted);
    if (fits != unused_.end() && fits->first <= wanted + wanted / 4) {
        size = fits->first;
        data = fits->second;
        unused_.erase(fits);
    } else {
        data = allocate(wanted, what);
    }
    return Memory(data, bytes, [pool = shared_from_this(), size](std::byte* block) {
        pool->give_back(block, size);
    });
}

void DevicePool::give_back(std::byte* data, int64_t bytes) {
    std::lock_guard lock(mutex_);
    unused_.emplace(bytes, data);
}

}  // namespace mok::layer
