#pragma once

#include <cstddef>

#include "openmok/operands.h"
#include "plan/memory_map.h"

namespace mok::cpu {

// gate, up and down of this rank's experts, rounded to BF16, then quantised in both orientations to
// where plan::fp8_weights_map(p) says. Columns behind K's end are zeros with scales of zero.
void quantise_experts(const plan::Problem& p, const Weights& weights, std::byte* to);

}  // namespace mok::cpu
