#pragma once

#include <cuda_runtime_api.h>

// Kernels of this process that did not end. While there is one, whatever waits for its device
// hangs, and much of the runtime does, cudaFree among it: memory is then kept for good instead of
// freed, which also keeps it for the kernel.
namespace mok::layer {

// The host has given up waiting for what the stream holds.
void give_up(cudaStream_t stream);

// Whether something that was given up has not ended to this day.
bool has_unended_kernels();
// Throws Error then, for a caller that would run something.
void refuse_unended_kernels();

}  // namespace mok::layer
