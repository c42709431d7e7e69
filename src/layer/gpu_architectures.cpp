#include "layer/gpu_architectures.h"

namespace mok::layer {
namespace {

std::string capability(int major, int minor) {
    return std::to_string(major) + "." + std::to_string(minor);
}

// "a", "a or b", "a, b or c".
std::string one_of(const std::vector<std::string>& names, const char* last) {
    std::string text;
    for (size_t i = 0; i < names.size(); ++i) {
        if (i > 0) text += i + 1 == names.size() ? last : ", ";
        text += names[i];
    }
    return text;
}

}  // namespace

std::string why_no_kernels(const std::string& name, int major, int minor,
                           std::span<const GpuArchitecture> built) {
    std::vector<std::string> names, capabilities;
    for (const GpuArchitecture& a : built) {
        if (a.major == major && a.minor == minor) return {};
        names.push_back(a.name);
        capabilities.push_back(capability(a.major, a.minor));
    }
    return name + ": expected compute capability " + one_of(capabilities, " or ") +
           " (this build has kernels for " + one_of(names, " and ") + "), found " +
           capability(major, minor);
}

}  // namespace mok::layer
