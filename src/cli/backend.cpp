#include "cli/backend.h"

#include <fmt/format.h>

#include <stdexcept>

namespace mok::cli {
namespace {

// The CUDA backend is built where CMake finds a CUDA toolkit.
constexpr const char* kNoCuda = "this build has no CUDA backend";
constexpr Device kFirstGpu{Device::Kind::Cuda, 0};

BackendChoice choose_by_machine() {
    if (!has_cuda_backend()) return {Backend::Cpu, {}, fmt::format("auto: {}", kNoCuda)};
    const std::string why_not = why_no_cuda(kFirstGpu.index);
    if (!why_not.empty()) return {Backend::Cpu, {}, fmt::format("auto: {}", why_not)};
    return {Backend::Cuda, kFirstGpu, fmt::format("auto: CUDA device {}", kFirstGpu.index)};
}

BackendChoice require_cuda() {
    if (!has_cuda_backend()) {
        throw std::invalid_argument(
            fmt::format("--backend: expected auto or cpu, for {}, found cuda", kNoCuda));
    }
    const std::string why_not = why_no_cuda(kFirstGpu.index);
    if (!why_not.empty()) throw std::invalid_argument(fmt::format("--backend cuda: {}", why_not));
    return {Backend::Cuda, kFirstGpu, "asked for"};
}

}  // namespace

const char* backend_name(Backend backend) {
    return backend == Backend::Cpu ? "cpu" : "cuda";
}

std::vector<std::string> built_backends() {
    if (has_cuda_backend()) return {"cpu", "cuda"};
    return {"cpu"};
}

std::vector<std::string> built_gpu_architectures() {
    return cuda_architectures();
}

std::vector<std::string> unproven_gpu_architectures() {
    std::vector<std::string> names = cuda_architectures();
    std::erase(names, "sm_90a");
    return names;
}

BackendChoice choose_backend(std::string_view request) {
    if (request == "cpu") return {Backend::Cpu, {}, "asked for"};
    if (request == "auto") return choose_by_machine();
    if (request == "cuda") return require_cuda();
    throw std::invalid_argument(
        fmt::format("--backend: expected auto, cpu or cuda, found \"{}\"", request));
}

}  // namespace mok::cli
