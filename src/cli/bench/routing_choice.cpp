#include "cli/bench/routing_choice.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <stdexcept>

#include "cli/common/random.h"
#include "cli/common/random_case.h"
#include "plan/problem.h"

namespace mok::cli {
namespace {

constexpr std::string_view kZipf = "zipf:";
// Beyond, a token's K-th distinct expert takes too many draws.
constexpr double kLargestExponent = 4.0;

}  // namespace

RoutingChoice parse_routing(std::string_view text) {
    using Kind = RoutingChoice::Kind;
    if (text == "balanced") return {};
    if (text == "one-rank") return {Kind::OneRank, 0.0};
    if (text.starts_with(kZipf)) {
        const std::string_view number = text.substr(kZipf.size());
        double exponent = 0.0;
        const auto [end, error] =
            std::from_chars(number.data(), number.data() + number.size(), exponent);
        if (error == std::errc() && end == number.data() + number.size() && exponent >= 0.0 &&
            exponent <= kLargestExponent) {
            return {Kind::Zipf, exponent};
        }
    }
    throw std::invalid_argument(fmt::format(
        "--routing: expected balanced, one-rank or zipf:EXPONENT of 0 to {}, found \"{}\"",
        kLargestExponent, text));
}

std::string routing_text(const RoutingChoice& routing) {
    switch (routing.kind) {
        case RoutingChoice::Kind::Balanced:
            return "balanced";
        case RoutingChoice::Kind::Zipf:
            return fmt::format("{}{:g}", kZipf, routing.exponent);
        default:
            return "one-rank";
    }
}

std::vector<int32_t> routed_ids(const RoutingChoice& routing, const LayerShape& shape,
                                int num_ranks, int64_t tokens_per_rank, uint64_t seed) {
    const int64_t tokens = num_ranks * tokens_per_rank;
    if (routing.kind != RoutingChoice::Kind::OneRank) {
        std::vector<double> weights(shape.num_experts);
        for (int64_t e = 0; e < shape.num_experts; ++e) {
            weights[e] = std::pow(static_cast<double>(e + 1), -routing.exponent);
        }
        return distinct_ids(weights, tokens, shape.top_k, seed);
    }
    const auto num_experts = static_cast<int32_t>(shape.num_experts);
    int32_t rank = num_ranks - 1;
    if (num_experts < num_ranks) rank = num_experts - 1;  // the last that owns an expert
    const int32_t first = plan::first_expert(num_experts, num_ranks, rank);
    const int32_t owned = plan::first_expert(num_experts, num_ranks, rank + 1) - first;
    std::vector<int32_t> ids;
    if (shape.top_k <= owned) {
        ids = distinct_ids(std::vector<double>(owned, 1.0), tokens, shape.top_k, seed);
    } else {
        Random random(seed);
        ids.resize(tokens * shape.top_k);
        for (int32_t& id : ids) id = static_cast<int32_t>(random.below(owned));
    }
    for (int32_t& id : ids) id += first;
    return ids;
}

}  // namespace mok::cli
