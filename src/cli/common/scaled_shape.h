#pragma once

#include "cli/io/model_config.h"
#include "openmok/shape.h"

namespace mok::cli {

// The bounds that a model's shape is scaled down to.
struct ScaleBounds {
    int64_t hidden = 512;
    int64_t experts = 16;
};

// A model's layer, small enough for the oracle: H at most the bound, I and S in the model's
// proportion to H (rounded to multiples of 8), K and the activation as they are, E at most the
// bound but more than K where the model has more.
LayerShape scaled_shape(const io::ModelShape& model, const ScaleBounds& bounds);

}  // namespace mok::cli
