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

// T, H, I, E, K that a paper states its rates for.
struct PublishedShape {
    int64_t tokens, hidden, intermediate, experts, top_k;
};
// Guo et al., "SonicMoE", 2025 (arXiv 2512.14080).
constexpr std::array kSonic = {
    PublishedShape{24576, 1536, 256, 128, 8},  PublishedShape{24576, 1536, 512, 64, 4},
    PublishedShape{24576, 1536, 1024, 32, 2},  PublishedShape{32768, 4096, 256, 256, 16},
    PublishedShape{32768, 4096, 512, 128, 8},  PublishedShape{32768, 4096, 1024, 64, 4},
    PublishedShape{32768, 4096, 512, 256, 16}, PublishedShape{32768, 4096, 1024, 128, 8},
    PublishedShape{32768, 4096, 2048, 64, 4},
};

// Zhang et al., "Comet", 2025 (arXiv 2502.19811): T of all ranks.
constexpr PublishedShape kComet{8192, 8192, 8192, 32, 4};
// Aimuyo et al., "FlashDMoE", 2025 (arXiv 2506.04667): T of each of eight GPUs.
constexpr PublishedShape kFlashDmoe{8192, 2048, 2048, 32, 2};

NamedShape published_shape(const char* work, const PublishedShape& s) {
    NamedShape named;
    named.name = fmt::format("{}-{}-{}-{}-{}", work, s.hidden, s.intermediate, s.experts, s.top_k);
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
        for (const PublishedShape& s : kSonic) shapes.push_back(published_shape("sonic", s));
        return shapes;
    }
    if (list == "fused") {
        shapes.push_back(published_shape("comet", kComet));
        shapes.back().tokens = std::max<int64_t>(kComet.tokens / num_ranks, 1);
        shapes.push_back(published_shape("flashdmoe", kFlashDmoe));
        return shapes;
    }
    if (list != "slices" && list != "full") {
        throw std::invalid_argument(
            fmt::format("--shapes: expected slices, sonic, fused or full, found \"{}\"", list));
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
