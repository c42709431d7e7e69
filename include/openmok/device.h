#pragma once

#include <string>
#include <vector>

namespace mok {

// Where a group's ranks compute and where the tensors of their calls lie.
struct Device {
    enum class Kind { Cpu, Cuda };
    Kind kind = Kind::Cpu;
    int index = 0;  // CUDA: as the CUDA runtime counts its devices

    bool operator==(const Device&) const = default;
};

// Why a CUDA group cannot be made on a device, in one sentence (what, expected, found); empty where
// it can. Launches nothing.
std::string why_no_cuda(int index = 0);

// The CUDA devices that this process can see; 0 without a driver, and in a build without CUDA.
int count_cuda_devices();

// Whether this build holds the CUDA backend.
bool has_cuda_backend();

// The GPU architectures that it has kernels for, of "sm_90a", "sm_100a" and "sm_103a"; none in a
// build without CUDA.
std::vector<std::string> cuda_architectures();

}  // namespace mok
