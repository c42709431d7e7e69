#include <cuda_runtime_api.h>

#include "comm/agreement.h"
#include "comm/cuda/nccl_memory.h"
#include "comm/local_rank.h"
#include "layer/cuda_memory.h"
#include "layer/gpu_architectures.h"
#include "openmok/device.h"
#include "openmok/error.h"
#include "openmok/group.h"

namespace mok {

bool has_cuda_backend() {
    return true;
}

int count_cuda_devices() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
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
    return layer::why_no_kernels(name, major, minor, layer::gpu_architectures());
}

std::vector<std::string> cuda_architectures() {
    std::vector<std::string> names;
    for (const layer::GpuArchitecture& a : layer::gpu_architectures()) names.push_back(a.name);
    return names;
}

std::vector<layer::GpuArchitecture> layer::gpu_architectures() {
    return {
#if defined(MOK_HAS_SM_90A)
        {"sm_90a", 9, 0},
#endif
#if defined(MOK_HAS_SM_100A)
            {"sm_100a", 10, 0},
#endif
#if defined(MOK_HAS_SM_103A)
            {"sm_103a", 10, 3},
#endif
    };
}

namespace {

// The device of a rank, or in `sentence` why there is none.
int device_of(int local_rank, std::string& sentence) {
    const int num_devices = count_cuda_devices();
    int device = 0;
    try {
        if (num_devices > 0) device = comm::gpu_of(local_rank, num_devices);
        sentence = why_no_cuda(device);
    } catch (const ShapeError& e) {
        sentence = e.what();
    }
    return device;
}

}  // namespace

std::vector<Group> Group::cuda_virtual(int num_ranks, int device, GroupOptions options) {
    std::vector<Group> ranks = in_process(num_ranks, options);
    const std::string why_not = why_no_cuda(device);
    if (!why_not.empty()) throw Error(why_not);
    for (Group& rank : ranks) rank.device_ = {Device::Kind::Cuda, device};
    return ranks;
}

Group Group::on_gpus(Group group, int device, std::string why_not) {
    if (!why_not.empty()) why_not = "rank " + std::to_string(group.rank()) + ": " + why_not;
    comm::agree(group, why_not, "choice of the GPUs");
    group.device_ = {Device::Kind::Cuda, device};
    if (group.size() > 1) {
        const layer::DeviceScope current(device);
        comm::require_nccl_windows(group);
    }
    return group;
}

Group Group::cuda_from_environment(GroupOptions options) {
    const Group group = from_environment(options);
    std::string why_not;
    const int device = device_of(group.local_rank(), why_not);
    return on_gpus(group, device, why_not);
}

Group Group::cuda_connect(const MeetingPoint& point, const Seat& seat, int device,
                          GroupOptions options) {
    return on_gpus(connect(point, seat, options), device, why_no_cuda(device));
}

}  // namespace mok
