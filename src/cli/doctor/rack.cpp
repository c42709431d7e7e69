#include "cli/doctor/rack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/doctor/shared_library.h"

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

// A GPU's place in a fabric as NVML has it (docs.nvidia.com/deploy/nvml-api, nvmlGpuFabricInfo_t).
struct FabricInfo {
    unsigned char cluster[16];
    int status;  // of a completed registration; 0: success
    unsigned int clique;
    unsigned char state;
};
constexpr int kSuccess = 0;
constexpr unsigned char kCompleted = 3;
constexpr const char* kStates[] = {"not supported", "not started", "in progress", "completed"};

// What NVML says of every GPU that the driver counts, or why it says nothing.
class Fabric {
  public:
    explicit Fabric(int num_gpus) : library_("libnvidia-ml.so.1") {
        using Handle = void*;
        if (!library_.is_open()) {
            error_ = library_.error();
            return;
        }
        const auto init = library_.find<int()>("nvmlInit_v2");
        const auto device = library_.find<int(unsigned, Handle*)>("nvmlDeviceGetHandleByIndex_v2");
        const auto info = library_.find<int(Handle, FabricInfo*)>("nvmlDeviceGetGpuFabricInfo");
        if (init == nullptr || device == nullptr || info == nullptr || init() != kSuccess) {
            error_ = "libnvidia-ml.so.1 knows no fabrics, or does not start";
            return;
        }
        for (int i = 0; i < num_gpus; ++i) {
            Handle handle = nullptr;
            FabricInfo found{};
            const bool known = device(i, &handle) == kSuccess && info(handle, &found) == kSuccess;
            gpus_.push_back(known ? std::optional(found) : std::nullopt);
        }
        if (const auto shutdown = library_.find<int()>("nvmlShutdown")) shutdown();
    }

    const std::string& error() const { return error_; }
    const std::vector<std::optional<FabricInfo>>& gpus() const { return gpus_; }

  private:
    SharedLibrary library_;
    std::string error_;
    std::vector<std::optional<FabricInfo>> gpus_;
};

// All zero where a host's own switches are no part of a larger fabric.
bool has_cluster(const FabricInfo& f) {
    return std::any_of(std::begin(f.cluster), std::end(f.cluster), [](int b) { return b != 0; });
}

// The cluster and the clique: GPUs reach each other's memory where both are equal.
std::string clique_of(const FabricInfo& f) {
    std::string cluster;
    for (const unsigned char byte : f.cluster) cluster += fmt::format("{:02x}", byte);
    return fmt::format("{}/{}", cluster, f.clique);
}

std::string state_of(const std::optional<FabricInfo>& f) {
    if (!f) return "not known to NVML";
    if (f->state > kCompleted) return fmt::format("state {}", f->state);
    if (f->state != kCompleted) return kStates[f->state];
    if (f->status != kSuccess) return fmt::format("failed (NVML error {})", f->status);
    return has_cluster(*f) ? fmt::format("completed, clique {}", clique_of(*f))
                           : "completed, of this host alone";
}

int count_imex_channels() {
    std::error_code error;
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/dev/nvidia-caps-imex-channels", error)) {
        if (entry.path().filename().string().starts_with("channel")) ++count;
    }
    return count;
}

std::string several_hosts(const Fabric& fabric, const std::vector<bool>& handles, int channels) {
    if (handles.empty()) return "not applicable (no GPU)";
    std::vector<std::string> missing;
    if (std::find(handles.begin(), handles.end(), false) != handles.end()) {
        missing.push_back("fabric handles of every GPU's driver");
    }
    bool in_one = !fabric.gpus().empty();
    for (const auto& gpu : fabric.gpus()) {
        in_one = in_one && gpu && gpu->state == kCompleted && gpu->status == kSuccess &&
                 has_cluster(*gpu) && clique_of(*gpu) == clique_of(*fabric.gpus().front());
    }
    if (!in_one) missing.push_back("every GPU in one clique of an NVLink fabric");
    if (channels == 0) missing.push_back("an IMEX channel (/dev/nvidia-caps-imex-channels)");
    if (!missing.empty()) return fmt::format("impossible; missing: {}", fmt::join(missing, ", "));
    return fmt::format("possible with hosts that say the same clique {}",
                       clique_of(*fabric.gpus().front()));
}

}  // namespace

Json rack_facts(const std::vector<bool>& fabric_handles) {
    const Fabric fabric(static_cast<int>(fabric_handles.size()));
    const int channels = count_imex_channels();
    Json states = Json::array();
    for (const auto& gpu : fabric.gpus()) states.push_back(state_of(gpu));
    return {{"fabric",
             fabric.error().empty() ? states : Json(fmt::format("none ({})", fabric.error()))},
            {"imex_channels", channels},
            {"group_over_several_hosts", several_hosts(fabric, fabric_handles, channels)}};
}

}  // namespace mok::cli
