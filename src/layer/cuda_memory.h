#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "layer/cuda_unended.h"
#include "layer/memory.h"

namespace mok::layer {

// Throws Error with what was asked and the runtime's own words where a call of it failed.
void check_cuda(cudaError_t error, const char* what);

// Makes a device current on this thread, and the one before again at its end.
class DeviceScope {
  public:
    explicit DeviceScope(int device);
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    int before_ = 0;
    bool is_other_;
};

// Whether work that is enqueued on a stream goes into a graph.
bool is_capturing(cudaStream_t stream);

// Device memory of one workspace: contexts, schedules and what a call needs for its time. Blocks
// that are given back are handed out again without waiting: everything of a workspace runs in the
// order of its calls. Freed with the pool, but for what an unended kernel may use. New blocks are
// made even while a stream is captured.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
  public:
    explicit DevicePool(int device) : device_(device) {}
    ~DevicePool();
    DevicePool(const DevicePool&) = delete;
    DevicePool& operator=(const DevicePool&) = delete;

    // 256-byte aligned. `what` names it where the device has too little memory. Giving back may
    // happen on any thread; the block keeps the pool.
    Memory take(int64_t bytes, const char* what);

  private:
    std::byte* allocate(int64_t bytes, const char* what);
    void give_back(std::byte* data, int64_t bytes);
    void free_unused();

    int device_;
    std::mutex mutex_;
    std::multimap<int64_t, std::byte*> unused_;  // by size
};

// Host memory that the device can write, zero at first.
template <class T>
class PinnedValue {
  public:
    PinnedValue() {
        void* data = nullptr;
        check_cuda(cudaHostAlloc(&data, sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable),
                   "pinned host memory");
        value_ = new (data) T{};
    }
    ~PinnedValue() {
        if (!has_unended_kernels()) cudaFreeHost(value_);
    }
    PinnedValue(const PinnedValue&) = delete;
    PinnedValue& operator=(const PinnedValue&) = delete;

    // For the device; with one address space the host's address is the device's.
    T* get() const { return value_; }
    // What the device has written, read while it may still write.
    template <class Field>
    Field peek(Field T::*field) const {
        return const_cast<const volatile T*>(value_)->*field;
    }

  private:
    T* value_ = nullptr;
};

}  // namespace mok::layer
