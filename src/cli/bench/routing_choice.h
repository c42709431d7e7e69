#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "openmok/shape.h"

namespace mok::cli {

// How the tokens of a benchmark choose their experts.
struct RoutingChoice {
    enum class Kind {
        Balanced,  // K distinct experts, uniformly random
        Zipf,      // K distinct experts, the e-th with weight (e + 1)^-exponent
        OneRank,   // the same as Balanced among the last rank's experts; where it has fewer than K,
                   // choices repeat
    };
    Kind kind = Kind::Balanced;
    double exponent = 0.0;  // of Zipf, 0 to 4

    bool operator==(const RoutingChoice&) const = default;
};

// "balanced", "zipf:1.2", "one-rank". Throws std::invalid_argument for anything else.
RoutingChoice parse_routing(std::string_view text);
std::string routing_text(const RoutingChoice& routing);

// Ids of all ranks, [num_ranks * tokens_per_rank, K].
std::vector<int32_t> routed_ids(const RoutingChoice& routing, const LayerShape& shape,
                                int num_ranks, int64_t tokens_per_rank, uint64_t seed);

}  // namespace mok::cli
