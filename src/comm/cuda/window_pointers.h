#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace mok::comm {

// Writes to pointers[r], in device memory, where rank r's window starts as this device addresses
// it. Every rank must belong to the window's LSA team.
cudaError_t launch_window_pointers(ncclWindow_t window, int num_ranks, void** pointers,
                                   cudaStream_t stream);

}  // namespace mok::comm
