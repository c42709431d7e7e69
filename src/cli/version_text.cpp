#include "cli/version_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/backend.h"
#include "cli/version.h"

namespace mok::cli {

std::string version_text() {
    const std::vector<std::string> architectures = built_gpu_architectures();
    const std::vector<std::string> unproven = unproven_gpu_architectures();
    return fmt::format(
        "mok {}\ncommit: {}\ncompiler: {}\nprocessor: {}\nbackends: {}\nGPU architectures: {}{}",
        kVersion, kCommit, kCompiler, *kCpuArch != '\0' ? kCpuArch : "the compiler's default",
        fmt::join(built_backends(), ", "),
        architectures.empty() ? "none (a CPU build)"
                              : fmt::format("{}", fmt::join(architectures, ", ")),
        unproven.empty()
            ? ""
            : fmt::format("\ncompiled but not run yet: {}", fmt::join(unproven, ", ")));
}

}  // namespace mok::cli
