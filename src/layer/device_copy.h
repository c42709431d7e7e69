#pragma once

#include <cstdint>

#include "layer/memory.h"
#include "openmok/device.h"

namespace mok::layer {

// For callers of the layer that hold their tensors on the host: memory of a CUDA device, and copies
// that are done when the call returns and come behind what the default stream has. Throw Error
// where the device has too little memory, and in a build without CUDA.
Memory cuda_memory(const Device& device, int64_t bytes);
void copy_to_cuda(const Device& device, void* to, const void* from, int64_t bytes);
void copy_from_cuda(const Device& device, void* to, const void* from, int64_t bytes);

}  // namespace mok::layer
