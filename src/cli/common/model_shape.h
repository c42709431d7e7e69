#pragma once

#include "cli/io/model_config.h"
#include "openmok/shape.h"

namespace mok::cli {

// The layer of a named model or a config file.
inline LayerShape layer_shape(const io::ModelShape& model) {
    LayerShape shape;
    shape.hidden = model.hidden;
    shape.intermediate = model.intermediate;
    shape.num_experts = model.experts;
    shape.top_k = model.top_k;
    shape.shared_intermediate = model.shared_intermediate;
    shape.activation = model.activation;
    return shape;
}

}  // namespace mok::cli
