#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>

namespace mok::layer {

// A block of memory of a backend, not initialised; what frees it goes with it.
class Memory {
  public:
    using Free = std::function<void(std::byte*)>;

    Memory() = default;
    Memory(std::byte* data, int64_t bytes, Free free)
        : block_(data, std::move(free)), bytes_(bytes) {}

    int64_t bytes() const { return bytes_; }
    std::byte* data() const { return block_.get(); }
    template <class T>
    T* at(int64_t offset) const {
        return reinterpret_cast<T*>(block_.get() + offset);
    }

  private:
    std::unique_ptr<std::byte, Free> block_;
    int64_t bytes_ = 0;
};

// Host memory, 4096-byte aligned, of at least one page.
inline Memory host_memory(int64_t bytes) {
    const size_t size = (static_cast<size_t>(bytes) + 4096) / 4096 * 4096;
    std::byte* data = static_cast<std::byte*>(std::aligned_alloc(4096, size));
    if (data == nullptr) throw std::bad_alloc();
    return Memory(data, bytes, [](std::byte* p) { std::free(p); });
}

}  // namespace mok::layer
