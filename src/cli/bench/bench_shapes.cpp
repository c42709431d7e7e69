#include "cli/bench/bench_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "cli/common/model_shape.h"
#include "cli/io/model_config.h"

namespace mok::cli {
namespace {

constexpr std::array kModels = {"kimi-k2.7", "glm-5.2", "qwen3.5-397b", "deepseek-v4-pro"};

// T, H, I, E, K of Guo et al., "SonicMoE", 2025 (arXiv 2512.14080).
struct SonicShape {
    int64_t tokens, hidden, intermediate, experts, top_k;
};
constexpr std::array kSonic = {
    SonicShape{24576, 1536, 256, 128, 8},  SonicShape{24576, 1536, 512, 64, 4},
    SonicShape{24576, 1536, 1024, 32, 2},  SonicShape{32768, 4096, 256, 256, 16},
    SonicShape{32768, 4096, 512, 128, 8},  SonicShape{32768, 4096, 1024, 64, 4},
    SonicShape{32768, 4096, 512, 256, 16}, SonicShape{32768, 4096, 1024, 128, 8},
    SonicShape{32768, 4096, 2048, 64, 4},
};

NamedShape sonic_shape(const SonicShape& s) {
    NamedShape named;
    named.name = fmt::format("sonic-{}-{}-{}-{}", s.hidden, s.intermediate, s.experts, s.top_k);
    named.shape.hidden = s.hidden;
    named.shape.intermediate = s.intermediate;
    named.shape.num_experts = s.experts;
    named.shape.top_k = s.top_k;
    named.tokens = s.tokens;
    return named;
}

}  // namespace

NamedShape model_shape(const std::string& model) {
    NamedShape named{model, layer_shape(io::named_model(model)), 0};
    named.shape.shared_intermediate = 0;
    return named;
}

std::vector<NamedShape> shape_list(std::string_view list, int num_ranks) {
    std::vector<NamedShape> shapes;
    if (list == "sonic") {
        for (const SonicShape& s : kSonic) shapes.push_back(sonic_shape(s));
        return shapes;
    }
    if (list != "slices" && list != "full") {
        throw std::invalid_argument(
            fmt::format("--shapes: expected slices, sonic or full, found \"{}\"", list));
    }
    for (const char* model : kModels) {
        NamedShape named = model_shape(model);
        if (list == "slices") {
            named.name += "-slice";
            named.shape.num_experts = io::named_model(model).local_ep64 * std::max(2, num_ranks);
        }
        shapes.push_back(named);
    }
    return shapes;
}

}  // namespace mok::cli
