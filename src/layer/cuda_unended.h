#pragma once

#include <cuda_runtime_api.h>

#include <chrono>

// Kernels of this process that do not end. While there is one, whatever waits for its device hangs,
// and much of the runtime does, cudaFree among it: memory is then kept for good instead of freed,
// which also keeps it for the kernel.
namespace mok::layer {

// What the stream holds is doubtful: it counts as unended if it has not ended after `patience`.
void doubt(cudaStream_t stream, std::chrono::steady_clock::duration patience);

// Whether something doubtful has not ended to this day. Waits out what is left of its patience.
bool has_unended_kernels();
// Throws Error then, for a caller that would run something.
void refuse_unended_kernels();

}  // namespace mok::layer
