#pragma once

#include <span>
#include <string>
#include <vector>

namespace mok::layer {

// A GPU architecture that kernels are compiled for, and the compute capability of its GPUs: code
// for sm_XYa runs on no other.
struct GpuArchitecture {
    std::string name;  // "sm_100a"
    int major, minor;
};

// Those that this build has kernels of; none in a CPU build.
std::vector<GpuArchitecture> gpu_architectures();

// Why the kernels do not run on a GPU (`name` says which) of a compute capability, in one sentence;
// empty where they do.
std::string why_no_kernels(const std::string& name, int major, int minor,
                           std::span<const GpuArchitecture> built);

}  // namespace mok::layer
