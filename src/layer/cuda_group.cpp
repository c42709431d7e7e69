#include <cuda_runtime_api.h>

#include "openmok/device.h"
#include "openmok/error.h"
#include "openmok/group.h"

namespace mok {

bool has_cuda_backend() {
    return true;
}

std::string why_no_cuda(int index) {
    const std::string name = "CUDA device " + std::to_string(index);
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return name + ": expected a GPU with its driver, found none (" + cudaGetErrorString(error) +
               ")";
    }
    if (index < 0 || index >= count) {
        return name + ": expected one of " + std::to_string(count) +
               (count == 1 ? " device, counted from 0" : " devices, counted from 0") +
               ", found no such device";
    }
    int major = 0, minor = 0;
    for (const cudaError_t asked :
         {cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
          cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)}) {
        if (asked != cudaSuccess) {
            cudaGetLastError();
            return name + ": expected its compute capability, found CUDA error " +
                   cudaGetErrorName(asked);
        }
    }
    if (major != 9 || minor != 0) {
        return name + ": expected compute capability 9.0 (Hopper), found " + std::to_string(major) +
               "." + std::to_string(minor);
    }
    return {};
}

std::vector<Group> Group::cuda_virtual(int num_ranks, int device, GroupOptions options) {
    std::vector<Group> ranks = in_process(num_ranks, options);
    const std::string why_not = why_no_cuda(device);
    if (!why_not.empty()) throw Error(why_not);
    for (Group& rank : ranks) rank.device_ = {Device::Kind::Cuda, device};
    return ranks;
}

}  // namespace mok
