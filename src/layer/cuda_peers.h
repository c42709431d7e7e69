#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "openmok/group.h"
#include "plan/memory_map.h"

namespace mok::layer {

// Where the windows of a group's ranks come from, and how the ranks meet on their streams: all that
// differs between virtual ranks of one process and ranks in processes of their own.
class CudaPeers {
  public:
    virtual ~CudaPeers() = default;
    // The window of a rank, as this rank's kernels address it; zero at first.
    virtual std::byte* window(int rank) const = 0;
    // What any rank enqueued before this call comes before what this rank enqueues after it. `what`
    // names the barrier in sentences.
    virtual void meet(cudaStream_t stream, const char* what) = 0;
    // Whether meet() can be captured into a graph.
    virtual bool is_capturable() const = 0;
    // What a host that waits for its stream calls at every look, of one wait.
    virtual std::function<void()> attendant() = 0;
    // Breaks the group where a meeting on the device has expired, and throws the TimeoutError of a
    // broken group. Asks host memory only.
    virtual void throw_if_broken() = 0;
    // Of a broken group, in which nobody comes any more: ends the meetings that the device is in.
    virtual void stop_if_broken() = 0;
};

// R ranks of one process on one device. Collective. The windows live until every rank's peers are
// gone.
std::unique_ptr<CudaPeers> make_virtual_peers(const Group& group, int64_t window_bytes);

// R ranks in processes of their own, a device each, on the current one. Collective, the end too:
// there it is the others that are waited for, unless the group is broken; peers that an exception
// destroys break it.
std::unique_ptr<CudaPeers> make_process_peers(const Group& group, const plan::WindowMap& map);

}  // namespace mok::layer
