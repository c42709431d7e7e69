#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/shared_library.h"

namespace mok::cli {

// Clock and power of one GPU by NVIDIA's management library, which is opened at run time. Where it
// is missing, or does not know a value, that value is absent.
class GpuSensors {
  public:
    // pci_bus_id as CUDA writes it, e.g. "0000:18:00.0".
    explicit GpuSensors(const std::string& pci_bus_id, const char* library = "libnvidia-ml.so.1");
    ~GpuSensors();
    GpuSensors(const GpuSensors&) = delete;
    GpuSensors& operator=(const GpuSensors&) = delete;

    void sample();
    // Medians of the samples so far.
    std::optional<double> sm_clock_mhz() const { return median_of(clocks_); }
    std::optional<double> power_w() const { return median_of(powers_); }
    std::optional<std::string> driver() const { return driver_; }

  private:
    static std::optional<double> median_of(std::vector<double> values);

    SharedLibrary library_;
    bool started_ = false;
    void* device_ = nullptr;  // the library's handle; null: there is no such GPU
    std::optional<std::string> driver_;
    std::vector<double> clocks_, powers_;
};

}  // namespace mok::cli
