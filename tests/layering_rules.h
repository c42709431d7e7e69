#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "layering_scan.h"

// What docs/design.md says of layers and folders, as rules over the text of a tree:
//     cli, python, examples, bench, tests -> layer -> kernels | cpu -> comm | arch -> plan
//     -> math, types
// Types are the public headers listed in kPlainTypes; the other public headers are the layer's API.
namespace mok::layering {

namespace fs = std::filesystem;

// Public headers that every layer may include. The rest of include/openmok is for `layer` and
// above.
inline constexpr std::array<std::string_view, 10> kPlainTypes = {
    "activation.h", "device.h",   "diagnostics.h", "error.h", "grad_mode.h",
    "group.h",      "operands.h", "precision.h",   "shape.h", "tensor.h",
};

// The only file outside src/arch that may hold inline assembly.
inline constexpr std::string_view kSyncHeader = "src/comm/sync.h";

// The standard headers that neither allocate nor perform input or output: all that plan and math
// may include from outside the tree.
inline const std::set<std::string_view> kFreestanding = {
    "algorithm", "array",    "bit",     "cassert",     "cfloat",  "climits",     "cmath",
    "compare",   "concepts", "cstddef", "cstdint",     "cstring", "iterator",    "limits",
    "numeric",   "optional", "span",    "string_view", "tuple",   "type_traits", "utility",
};

struct Layer {
    std::string_view name;
    int height;  // an include points to a smaller height, or stays in its own layer
};

inline constexpr std::array kLayers = {
    Layer{"types", 0}, Layer{"math", 1},    Layer{"plan", 2},   Layer{"comm", 3},
    Layer{"arch", 3},  Layer{"kernels", 4}, Layer{"cpu", 4},    Layer{"api", 5},
    Layer{"layer", 6}, Layer{"cli", 7},     Layer{"python", 7}, Layer{"examples", 7},
    Layer{"bench", 7}, Layer{"fuzz", 8},    Layer{"tests", 8},
};
inline constexpr Layer kNoLayer = {"", -1};

// `path` is relative to the root of the tree, with forward slashes.
inline Layer layer_of(const fs::path& path) {
    std::string_view name;
    const std::string top = path.begin()->string();
    const std::string second = path.has_parent_path() ? std::next(path.begin())->string() : "";
    if (top == "include" && second == "openmok") {
        const bool is_plain = std::ranges::count(kPlainTypes, path.filename().string()) > 0;
        name = is_plain ? "types" : "api";
    } else {
        name = top == "src" ? std::string_view(second) : std::string_view(top);
    }
    const auto layer = std::ranges::find(kLayers, name, &Layer::name);
    return layer == kLayers.end() ? kNoLayer : *layer;
}

// The file of the tree that an include means, relative to the root; empty when it means none. A
// header made by CMake is where the NAME.in is that it is made from.
inline fs::path resolve(const fs::path& root, const fs::path& includer, const Include& include) {
    std::vector<fs::path> folders = {"include", "src"};
    if (include.is_quoted) folders.insert(folders.begin(), includer.parent_path());
    for (const fs::path& folder : folders) {
        const fs::path path = (folder / include.name).lexically_normal();
        const bool is_there = fs::is_regular_file(root / path);
        if (is_there || fs::is_regular_file((root / path).string() + ".in")) return path;
    }
    return {};
}

inline bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> starts) {
    return std::ranges::any_of(starts, [&](auto start) { return text.starts_with(start); });
}

// Whether a file may include a header that is not the tree's; the reason when it may not.
inline std::string outside_reason(const fs::path& path, const Layer& layer,
                                  const std::string& header) {
    if (layer.name == "types" || layer.name == "api") {
        const bool is_standard = header.find_first_of("/.") == std::string::npos;
        return is_standard ? "" : "a public header includes only the standard library";
    }
    if (layer.name == "math" || layer.name == "plan") {
        const bool is_validation =
            layer.name == "plan" && path.stem().string().starts_with("valid");
        const bool is_text = is_validation && (header == "string" || header == "vector");
        if (kFreestanding.contains(header) || is_text) return "";
        return "plan and math include no allocation, CUDA or other library";
    }
    if (layer.height <= 6 && starts_with_any(header, {"CLI/", "fmt/", "nlohmann/", "openssl/"})) {
        return "the installed library does without it";
    }
    if (layer.height <= 6 && layer.name != "cpu" &&
        starts_with_any(header, {"Eigen/", "eigen3/"})) {
        return "Eigen belongs to cpu";
    }
    if (layer.name == "cpu" && starts_with_any(header, {"cuda", "cooperative_groups", "nccl"})) {
        return "cpu knows no CUDA";
    }
    return "";
}

inline std::string include_reason(const fs::path& root, const fs::path& path, const Layer& layer,
                                  const Include& include) {
    const fs::path target = resolve(root, path, include);
    if (target.empty()) {
        if (include.is_quoted) return "no such file in the tree";
        return outside_reason(path, layer, include.name);
    }
    const Layer to = layer_of(target);
    const bool is_own = to.name == layer.name && to.height >= 0;
    const bool is_api_within = layer.name == "api" && to.name != "types" && !is_own;
    if (is_api_within) return "a public header includes only public headers";
    if (is_own || (to.height >= 0 && to.height < layer.height)) return "";
    return std::string(layer.name) + " may not include " +
           (to.height < 0 ? "what has no layer" : std::string(to.name));
}

// One sentence for each breach in one file: FILE:LINE: what, and why not.
inline std::vector<std::string> check_file(const fs::path& root, const fs::path& path) {
    const Layer layer = layer_of(path);
    if (layer.height < 0) return {path.generic_string() + ": belongs to no layer"};

    std::ifstream stream(root / path);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const Stripped stripped = strip(text);
    std::vector<std::string> breaches;
    const auto add = [&](int line, const std::string& what) {
        breaches.push_back(path.generic_string() + ":" + std::to_string(line) + ": " + what);
    };
    for (const Include& include : includes_of(stripped)) {
        const std::string reason = include_reason(root, path, layer, include);
        if (!reason.empty()) add(include.line, "includes " + include.name + ": " + reason);
    }
    if (layer.name != "arch" && path.generic_string() != kSyncHeader) {
        for (int line : asm_lines_of(stripped)) add(line, "inline assembly belongs to arch");
    }
    return breaches;
}

struct Report {
    int num_files = 0;
    std::vector<std::string> breaches;  // in the order of their paths
};

inline Report check_tree(const fs::path& root) {
    std::set<fs::path> paths;
    for (const char* folder : {"include", "src", "python", "examples", "bench", "fuzz", "tests"}) {
        if (!fs::is_directory(root / folder)) continue;
        for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
            const std::string extension = entry.path().extension().string();
            const bool is_source = extension == ".h" || extension == ".cpp" ||
                                   extension == ".cuh" || extension == ".cu";
            if (entry.is_regular_file() && is_source)
                paths.insert(entry.path().lexically_relative(root));
        }
    }
    Report report;
    for (const fs::path& path : paths) {
        ++report.num_files;
        std::ranges::move(check_file(root, path), std::back_inserter(report.breaches));
    }
    return report;
}

}  // namespace mok::layering
