#pragma once

#include <cuda_runtime_api.h>

#include "layer/cuda_faults.h"
#include "layer/cuda_peers.h"

namespace mok::layer {

// Waits until a rank's stream has ended, with looks at it (stream_wait.h). Where it does not end,
// gives it up (doubt, cuda_unended.h), breaks the group and throws TimeoutError.
void wait_for_rank(cudaStream_t stream, CudaFaults& faults, CudaPeers& peers);

// Before a call that a failure will end without a wait: the stream is then doubted, so that the
// workspace's end does not wait for ever.
void doubt_after_failure(cudaStream_t stream, CudaFaults& faults);

}  // namespace mok::layer
