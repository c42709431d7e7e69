#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "openmok/shape.h"

namespace mok::cli {

// A layer of a list of benchmarks.
struct NamedShape {
    std::string name;
    LayerShape shape;    // routed experts only
    int64_t tokens = 0;  // T that the list states for it; 0: none
};

// The shapes of a list, for R ranks:
//   slices  four models with local_ep64 experts a rank, of two ranks where R = 1: what each GPU
//           of a group of 64 holds (data/shapes.json)
//   sonic   the nine configurations that SonicMoE publishes its rates for, with their T
//   fused   those that other systems of one kernel publish eight GPUs' times for, with their T:
//           Comet's 8,192 tokens of all ranks, FlashDMoE's 8,192 of each
//   full    the four models with all their experts
// Throws std::invalid_argument for another name.
std::vector<NamedShape> shape_list(std::string_view list, int num_ranks);

// A model of data/shapes.json.
NamedShape model_shape(const std::string& model);

}  // namespace mok::cli
