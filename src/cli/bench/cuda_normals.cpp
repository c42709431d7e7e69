#include "cli/bench/cuda_normals.h"

#include <algorithm>
#include <vector>

#include "cli/common/random.h"
#include "layer/cuda_memory.h"
#include "layer/device_copy.h"
#include "math/bf16.h"

namespace mok::cli {
namespace {

constexpr int64_t kBlockElements = 4194301;  // the largest prime below 2^22

}  // namespace

CudaNormals::CudaNormals(const Device& device, std::initializer_list<double> deviations)
    : device_(device) {
    const int64_t bytes = kBlockElements * static_cast<int64_t>(sizeof(Bf16));
    for (const double deviation : deviations) {
        Random random(1);
        std::vector<Bf16> normals(kBlockElements);
        for (Bf16& v : normals) v = to_bf16(static_cast<float>(deviation * random.normal()));
        layer::Memory& block = blocks_[deviation] = layer::cuda_memory(device, bytes);
        layer::copy_to_cuda(device, block.data(), normals.data(), bytes);
    }
}

void CudaNormals::fill(void* tensor, const Part& part, double deviation) const {
    const layer::DeviceScope scope(device_.index);
    constexpr auto kSize = static_cast<int64_t>(sizeof(Bf16));
    const std::byte* const from = blocks_.at(deviation).data();
    auto* to = static_cast<std::byte*>(tensor);
    const auto begin = static_cast<int64_t>(part.seed * 1000003 % kBlockElements);
    int64_t at = (begin + part.first) % kBlockElements;
    for (int64_t done = 0; done < part.elements;) {
        const int64_t num = std::min(part.elements - done, kBlockElements - at);
        layer::check_cuda(
            cudaMemcpy(to + done * kSize, from + at * kSize, num * kSize, cudaMemcpyDeviceToDevice),
            "filling a tensor");
        done += num;
        at = 0;
    }
    layer::check_cuda(cudaDeviceSynchronize(), "filling a tensor");
}

}  // namespace mok::cli
