#pragma once

#include <string>

#include "plan/route_table.h"

namespace mok::layer {

// What both engines say of ids and counts that a schedule cannot be built from.
// id: what the caller gave.
inline std::string bad_id(const plan::Problem& p, const plan::BadId& bad, int64_t id) {
    return "topk_ids of rank " + std::to_string(bad.home) + ", token " + std::to_string(bad.token) +
           ", choice " + std::to_string(bad.choice) + ": expected -1 or an expert below " +
           std::to_string(p.num_experts) + ", found " + std::to_string(id);
}

inline std::string too_many_tokens(const plan::Problem& p, int rank, int64_t found) {
    return "topk_ids of rank " + std::to_string(rank) + ": expected at most " +
           std::to_string(p.max_tokens) + " tokens (the workspace's maximum), found " +
           std::to_string(found);
}

}  // namespace mok::layer
