#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "openmok/group.h"

namespace mok::comm {

// A window of every rank, all of the same size, which each rank's code may read and write. Zero at
// first. Every way to make one is collective, and throws on all ranks where one fails.
class PeerMemory {
  public:
    virtual ~PeerMemory() = default;
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    int64_t bytes() const { return bytes_; }
    // The start of a rank's window as this rank addresses it, a multiple of 256.
    std::byte* base(int rank) const { return bases_[rank]; }

  protected:
    explicit PeerMemory(int64_t bytes) : bytes_(bytes) {}

    int64_t bytes_;
    std::vector<std::byte*> bases_;  // [R]
};

// Host memory, for ranks of one process. A window lives until every rank's PeerMemory is gone: a
// rank that fails may leave while others read its window.
std::unique_ptr<PeerMemory> make_host_memory(const Group& group, int64_t bytes);

}  // namespace mok::comm
