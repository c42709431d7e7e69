#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "openmok/error.h"

namespace mok::comm {

// Throws Error with what was asked and the runtime's own words where a call of it failed.
inline void demand_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    throw Error("CUDA: " + std::string(what) + " failed: " + cudaGetErrorString(error));
}

}  // namespace mok::comm
