// A stand-in for libnvidia-ml.so.1 with one GPU, "0000:18:00.0": what the benchmark asks of it and
// nothing else (docs.nvidia.com/deploy/nvml-api). Clock and power grow with every question.
#include <cstdlib>
#include <cstring>

namespace {

int device = 0;
unsigned num_clocks = 0, num_powers = 0;

}  // namespace

extern "C" {

// NVML_ERROR_DRIVER_NOT_LOADED is 9.
int nvmlInit_v2() {
    return std::getenv("FAKE_NO_DRIVER") != nullptr ? 9 : 0;
}
int nvmlShutdown() {
    return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
    std::strncpy(version, "580.159.03", length);
    return 0;
}
// NVML_ERROR_NOT_FOUND is 6.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {
    *handle = &device;
    return std::strcmp(bus, "0000:18:00.0") == 0 ? 0 : 6;
}
// Three GPUs are registered with a fabric, all in one clique but those that FAKE_CLIQUE names; its
// cluster is all zero without FAKE_FABRIC.
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    static int devices[3];
    *handle = &devices[index % 3];
    return index < 3 ? 0 : 6;
}
struct FabricInfo {
    unsigned char cluster[16];
    int status;
    unsigned int clique;
    unsigned char state;
};
int nvmlDeviceGetGpuFabricInfo(void* handle, FabricInfo* info) {
    static void* first = nullptr;
    if (first == nullptr) first = handle;
    const char* other = std::getenv("FAKE_CLIQUE");
    *info = {};
    if (std::getenv("FAKE_FABRIC") != nullptr) info->cluster[15] = 0xab;
    info->clique = handle != first && other != nullptr ? std::atoi(other) : 7;
    info->state = 3;
    return 0;
}
// NVML_CLOCK_SM is 1; NVML_ERROR_INVALID_ARGUMENT is 2.
int nvmlDeviceGetClockInfo(void* handle, int kind, unsigned* mhz) {
    if (handle != &device || kind != 1) return 2;
    *mhz = 1500 + num_clocks++;
    return 0;
}
int nvmlDeviceGetPowerUsage(void* handle, unsigned* milliwatts) {
    if (handle != &device) return 2;
    *milliwatts = 600000 + 1500 * num_powers++;
    return 0;
}
}
