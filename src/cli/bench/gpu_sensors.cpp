#include "cli/bench/gpu_sensors.h"

#include <algorithm>
#include <array>

namespace mok::cli {
namespace {

// Of docs.nvidia.com/deploy/nvml-api.
constexpr int kSuccess = 0;             // NVML_SUCCESS
constexpr int kClockOfSms = 1;          // NVML_CLOCK_SM
constexpr unsigned kVersionChars = 80;  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE

}  // namespace

GpuSensors::GpuSensors(const std::string& pci_bus_id, const char* library) : library_(library) {
    const auto init = library_.find<int()>("nvmlInit_v2");
    started_ = init != nullptr && init() == kSuccess;
    if (!started_) return;
    std::array<char, kVersionChars> version{};
    const auto driver = library_.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
    if (driver != nullptr && driver(version.data(), kVersionChars) == kSuccess) {
        driver_ = version.data();
    }
    const auto find = library_.find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    if (find == nullptr || find(pci_bus_id.c_str(), &device_) != kSuccess) device_ = nullptr;
}

GpuSensors::~GpuSensors() {
    const auto shutdown = library_.find<int()>("nvmlShutdown");
    if (started_ && shutdown != nullptr) shutdown();
}

void GpuSensors::sample() {
    if (device_ == nullptr) return;
    unsigned value = 0;
    const auto clock = library_.find<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    if (clock != nullptr && clock(device_, kClockOfSms, &value) == kSuccess) {
        clocks_.push_back(value);
    }
    const auto power = library_.find<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage");
    if (power != nullptr && power(device_, &value) == kSuccess) {
        powers_.push_back(value / 1e3);  // from mW
    }
}

std::optional<double> GpuSensors::median_of(std::vector<double> values) {
    if (values.empty()) return std::nullopt;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace mok::cli
