#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "openmok/shape.h"

namespace mok::plan {

// Every rule on a layer's shape and tuning that a group of num_ranks ranks with at most max_tokens
// tokens each can check beforehand: one sentence for each rule that is broken (what, expected,
// found), none where all is well. Whoever builds a Problem asks here first; the arithmetic of
// `plan` then stays inside int32.
std::vector<std::string> problems_of(const LayerShape& shape, const Tuning& tuning, int num_ranks,
                                     int64_t max_tokens);

}  // namespace mok::plan
