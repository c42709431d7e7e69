#pragma once

#include <cuda_runtime_api.h>

#include "layer/cuda_faults.h"
#include "layer/cuda_peers.h"

namespace mok::layer {

// Waits until a rank's stream has ended, with looks at it (stream_wait.h). Where it does not end,
// gives it up (cuda_unended.h), breaks the group and throws TimeoutError.
void wait_for_rank(cudaStream_t stream, CudaFaults& faults, CudaPeers& peers,
                   const GroupOptions& options);

}  // namespace mok::layer
