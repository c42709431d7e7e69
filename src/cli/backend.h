#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "openmok/device.h"

namespace mok::cli {

// What computes the layer.
enum class Backend { Cpu, Cuda };
const char* backend_name(Backend backend);

// What this build holds: e.g. {"cpu"}; {"sm_90a", "sm_100a"}, empty in a CPU build; of these the
// architectures whose kernels have been compiled and examined, but not run on a GPU yet.
std::vector<std::string> built_backends();
std::vector<std::string> built_gpu_architectures();
std::vector<std::string> unproven_gpu_architectures();

struct BackendChoice {
    Backend backend;
    Device device;
    std::string reason;  // for the user, e.g. "auto: this build has no CUDA backend"
};

// `request` is auto, cpu or cuda. auto takes cuda where there is a GPU that it can use, else cpu.
// Throws std::invalid_argument, saying why, for a backend that cannot be had.
BackendChoice choose_backend(std::string_view request);

}  // namespace mok::cli
