#include "cli/backend.h"

#include <fmt/format.h>

#include <stdexcept>

namespace mok::cli {
namespace {

// The CUDA backend is built where CMake finds a CUDA toolkit.
constexpr const char* kNoCuda = "this build has no CUDA backend";

}  // namespace

const char* backend_name(Backend) {
    return "cpu";
}

std::vector<std::string> built_backends() {
    return {"cpu"};
}

std::vector<std::string> built_gpu_architectures() {
    return {};
}

BackendChoice choose_backend(std::string_view request) {
    if (request == "cpu") return {Backend::Cpu, "asked for"};
    if (request == "auto") return {Backend::Cpu, fmt::format("auto: {}", kNoCuda)};
    if (request == "cuda") {
        throw std::invalid_argument(
            fmt::format("--backend: expected auto or cpu, for {}, found cuda", kNoCuda));
    }
    throw std::invalid_argument(
        fmt::format("--backend: expected auto, cpu or cuda, found \"{}\"", request));
}

}  // namespace mok::cli
