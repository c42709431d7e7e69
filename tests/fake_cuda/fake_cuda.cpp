// A stand-in for libcuda.so.1 and libnccl.so.2 of a machine with three GPUs, of which 0 and 2
// cannot reach each other: what `mok doctor` asks of them and nothing else (CUDA driver API;
// nccl.h).
#include <cstddef>
#include <cstdlib>
#include <cstring>

extern "C" {

// CUDA_ERROR_NO_DEVICE is 100.
int cuInit(unsigned) {
    return std::getenv("FAKE_NO_DEVICE") != nullptr ? 100 : 0;
}
int cuGetErrorString(int, const char** text) {
    *text = "no CUDA-capable device is detected";
    return 0;
}
int cuDriverGetVersion(int* version) {
    *version = 13010;
    return 0;
}
int cuDeviceGetCount(int* count) {
    *count = 3;
    return 0;
}
int cuDeviceGet(int* device, int index) {
    *device = index;
    return 0;
}
int cuDeviceGetName(char* name, int size, int) {
    std::strncpy(name, "Fake GPU", size);
    return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
    *bytes = std::size_t{80} << 30;
    return 0;
}
// Compute capability 9.(device), or FAKE_MAJOR.FAKE_MINOR; fabric handles where FAKE_FABRIC is set.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (attribute == 128) {
        *value = std::getenv("FAKE_FABRIC") != nullptr;
        return 0;
    }
    const char* asked = std::getenv(attribute == 75 ? "FAKE_MAJOR" : "FAKE_MINOR");
    *value = asked != nullptr ? std::atoi(asked) : (attribute == 75 ? 9 : device);
    return 0;
}
int cuDeviceCanAccessPeer(int* yes, int from, int to) {
    *yes = from + to != 2;
    return 0;
}

// Version 2.28.9; before 2.9 it would be 2809.
int ncclGetVersion(int* version) {
    *version = std::getenv("FAKE_OLD_NCCL") != nullptr ? 2809 : 22809;
    return 0;
}
}
