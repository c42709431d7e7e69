#include "cli/doctor/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/backend.h"
#include "cli/doctor/shared_library.h"
#include "cli/version.h"

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNotCompiled = "none (a CPU build)";

std::string kernel_driver() {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    if (!std::getline(file, line)) return "none (there is no /proc/driver/nvidia/version)";
    return line;
}

// /dev/nvidia0, /dev/nvidia1, ...
std::vector<std::string> device_files() {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("nvidia") && name.size() > 6 &&
            std::all_of(name.begin() + 6, name.end(),
                        [](char c) { return c >= '0' && c <= '9'; })) {
            files.push_back(entry.path().string());
        }
    }
    std::sort(files.begin(), files.end());
    return files;
}

// Which of this build's kernels a GPU of a compute capability runs.
std::string kernels_for(int major, int minor) {
    const std::string name = fmt::format("sm_{}{}a", major, minor);
    const auto is_in = [&name](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (!is_in(built_gpu_architectures())) return "none in this build";
    return is_in(unproven_gpu_architectures()) ? name + " (compiled but not run yet)" : name;
}

// The few functions of the CUDA driver API (docs.nvidia.com/cuda/cuda-driver-api) that are asked.
class Driver {
  public:
    Driver() : library_("libcuda.so.1") {}

    // "found", or why no GPU can be used.
    std::string start() {
        if (!library_.is_open()) return fmt::format("none ({})", library_.error());
        const auto init = library_.find<int(unsigned)>("cuInit");
        if (init == nullptr) return "found, but it has no cuInit";
        const int error = init(0);
        if (error != 0) return fmt::format("found, but cuInit failed: {}", error_text(error));
        started_ = true;
        return "found";
    }

    // Encoded as 1000 * major + 10 * minor; 0: unknown.
    int version() const { return ask("cuDriverGetVersion"); }
    int num_devices() const { return started_ ? ask("cuDeviceGetCount") : 0; }

    Json device(int index) const {
        int handle = 0;
        const auto get = library_.find<int(int*, int)>("cuDeviceGet");
        if (get == nullptr || get(&handle, index) != 0) return {{"name", "cannot be opened"}};
        char name[256] = "unknown";
        if (const auto f = library_.find<int(char*, int, int)>("cuDeviceGetName")) {
            f(name, sizeof(name), handle);
        }
        size_t bytes = 0;
        if (const auto f = library_.find<int(size_t*, int)>("cuDeviceTotalMem_v2"))
            f(&bytes, handle);
        // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR are 75 and 76.
        const int major = attribute(handle, 75), minor = attribute(handle, 76);
        return {{"name", name},
                {"compute_capability", fmt::format("{}.{}", major, minor)},
                {"kernels", kernels_for(major, minor)},
                {"memory_gib", std::round(static_cast<double>(bytes) / 0x1p30 * 10) / 10}};
    }

    // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED is 128.
    bool has_fabric_handles(int index) const {
        int handle = 0;
        const auto get = library_.find<int(int*, int)>("cuDeviceGet");
        return get != nullptr && get(&handle, index) == 0 && attribute(handle, 128) == 1;
    }

    bool can_access(int from, int to) const {
        int yes = 0;
        const auto f = library_.find<int(int*, int, int)>("cuDeviceCanAccessPeer");
        return f != nullptr && f(&yes, from, to) == 0 && yes != 0;
    }

  private:
    int ask(const char* function) const {
        int value = 0;
        const auto f = library_.find<int(int*)>(function);
        return f != nullptr && f(&value) == 0 ? value : 0;
    }
    int attribute(int device, int which) const {
        int value = 0;
        if (const auto f = library_.find<int(int*, int, int)>("cuDeviceGetAttribute")) {
            f(&value, which, device);
        }
        return value;
    }
    std::string error_text(int error) const {
        const char* text = nullptr;
        const auto f = library_.find<int(int, const char**)>("cuGetErrorString");
        if (f == nullptr || f(error, &text) != 0 || text == nullptr) text = "unknown error";
        return fmt::format("{} (error {})", text, error);
    }

    SharedLibrary library_;
    bool started_ = false;
};

std::string cuda_version(int encoded) {
    return fmt::format("{}.{}", encoded / 1000, encoded % 1000 / 10);
}

std::string peer_access(const Driver& driver, int num_devices) {
    if (num_devices < 2) return "not applicable (fewer than two GPUs)";
    std::vector<std::string> without;
    for (int from = 0; from < num_devices; ++from) {
        for (int to = 0; to < num_devices; ++to) {
            if (from == to || driver.can_access(from, to)) continue;
            without.push_back(fmt::format("{} to {}", from, to));
        }
    }
    if (without.empty()) return "between all GPUs";
    return fmt::format("missing from GPU {}", fmt::join(without, ", "));
}

// ncclGetVersion encodes 2.9 and later as 10000 * major + 100 * minor + patch, earlier versions
// with 1000 (nccl.h, NCCL_VERSION).
std::string nccl_version(int encoded) {
    const int major = encoded >= 10000 ? 10000 : 1000;
    return fmt::format("{}.{}.{}", encoded / major, encoded % major / 100, encoded % 100);
}

// The version that a library's function int(int*) reports, or why there is none.
std::string run_time_version(std::initializer_list<const char*> names, const char* function,
                             std::string (*text)(int)) {
    std::string errors;
    for (const char* name : names) {
        const SharedLibrary library(name);
        if (!library.is_open()) {
            errors = library.error();
            continue;
        }
        int encoded = 0;
        const auto f = library.find<int(int*)>(function);
        if (f == nullptr || f(&encoded) != 0) return fmt::format("{} without a version", name);
        return fmt::format("{} ({})", text(encoded), name);
    }
    return fmt::format("none ({})", errors);
}

}  // namespace

Json gpu_facts() {
    Driver driver;
    const std::string libcuda = driver.start();
    const int num_devices = driver.num_devices(), version = driver.version();
    Json devices = Json::array();
    for (int i = 0; i < num_devices; ++i) devices.push_back(driver.device(i));
    return {{"kernel_driver", kernel_driver()},
            {"device_files", device_files()},
            {"libcuda", libcuda},
            {"cuda_of_driver", version > 0 ? cuda_version(version) : "none"},
            {"devices", devices},
            {"peer_access", peer_access(driver, num_devices)}};
}

std::vector<bool> fabric_handles() {
    Driver driver;
    driver.start();
    std::vector<bool> handles;
    for (int i = 0; i < driver.num_devices(); ++i) handles.push_back(driver.has_fabric_handles(i));
    return handles;
}

Json cuda_facts() {
    return {{"compiled", *kCudaCompiler != '\0' ? kCudaCompiler : kNotCompiled},
            {"run_time", run_time_version({"libcudart.so.13", "libcudart.so.12"},
                                          "cudaRuntimeGetVersion", cuda_version)}};
}

Json nccl_facts() {
    const char* without =
        *kCudaCompiler != '\0' ? "none (a build without nccl_device.h)" : kNotCompiled;
    return {{"compiled", *kNccl != '\0' ? kNccl : without},
            {"run_time", run_time_version({"libnccl.so.2"}, "ncclGetVersion", nccl_version)}};
}

}  // namespace mok::cli
