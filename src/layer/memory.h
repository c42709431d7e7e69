#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace mok::layer {

// A block of host memory, 4096-byte aligned, of at least one page; not initialised.
class Memory {
  public:
    Memory() = default;
    explicit Memory(int64_t bytes) : bytes_(bytes) {
        const size_t size = (static_cast<size_t>(bytes) + 4096) / 4096 * 4096;
        block_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
        if (!block_) throw std::bad_alloc();
    }
    int64_t bytes() const { return bytes_; }
    std::byte* data() const { return block_.get(); }
    template <class T>
    T* at(int64_t offset) const {
        return reinterpret_cast<T*>(block_.get() + offset);
    }
    // Makes the block at least so large; its contents are lost if it grows.
    void reserve(int64_t bytes) {
        if (!block_ || bytes_ < bytes) *this = Memory(bytes);
    }

  private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<std::byte, Free> block_;
    int64_t bytes_ = 0;
};

}  // namespace mok::layer
