#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <optional>

namespace mok::kernels {

// What a kernel asks of each device once, before its first launch there, and keeps.
template <class Known>
class PreparedDevices {
  public:
    // Of the current device; prepare(device, known) finds it, the first time only.
    template <class Prepare>
    cudaError_t find(Prepare prepare, Known& known) {
        int device = 0;
        const cudaError_t error = cudaGetDevice(&device);
        if (error != cudaSuccess) return error;
        if (device >= static_cast<int>(devices_.size())) return prepare(device, known);
        const std::lock_guard lock(mutex_);
        std::optional<Known>& found = devices_[device];
        if (!found) {
            Known fresh{};
            const cudaError_t failed = prepare(device, fresh);
            if (failed != cudaSuccess) return failed;
            found = fresh;
        }
        known = *found;
        return cudaSuccess;
    }

  private:
    std::mutex mutex_;
    std::array<std::optional<Known>, 64> devices_;
};

// The most dynamic shared memory that a kernel may use, set once on each device.
class SharedMemoryLimit {
  public:
    cudaError_t set(const void* kernel, int bytes) {
        const auto set_on_device = [&](int, bool& is_set) {
            is_set = true;
            return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        };
        bool is_set = false;
        return devices_.find(set_on_device, is_set);
    }

  private:
    PreparedDevices<bool> devices_;
};

}  // namespace mok::kernels
