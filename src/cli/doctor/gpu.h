#pragma once

#include <nlohmann/json.hpp>
#include <vector>

// What can be found out about GPUs at run time without a CUDA library being linked: files of the
// kernel driver, and the libraries that the loader finds.
namespace mok::cli {

// {"kernel_driver", "device_files", "libcuda", "cuda_of_driver", "devices": [{"name",
// "compute_capability", "kernels", "memory_gib"}], "peer_access"}. A fact that is not there says
// why in words.
nlohmann::ordered_json gpu_facts();

// Of each GPU that the driver counts, whether it hands memory on to other hosts of an NVLink
// fabric.
std::vector<bool> fabric_handles();

// {"compiled", "run_time"}: the version that this build was compiled against and the one that the
// loader finds.
nlohmann::ordered_json cuda_facts();
nlohmann::ordered_json nccl_facts();

}  // namespace mok::cli
