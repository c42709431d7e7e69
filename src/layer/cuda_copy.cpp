#include "layer/cuda_memory.h"
#include "layer/device_copy.h"

namespace mok::layer {

Memory cuda_memory(const Device& device, int64_t bytes) {
    return std::make_shared<DevicePool>(device.index)->take(bytes, "tensor");
}

void copy_to_cuda(const Device& device, void* to, const void* from, int64_t bytes) {
    const DeviceScope current(device.index);
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the device");
}

void copy_from_cuda(const Device& device, void* to, const void* from, int64_t bytes) {
    const DeviceScope current(device.index);
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copying from the device");
}

}  // namespace mok::layer
