#include "cli/common/scaled_shape.h"

#include <algorithm>

namespace mok::cli {

LayerShape scaled_shape(const io::ModelShape& model, const ScaleBounds& bounds) {
    const int64_t hidden = model.hidden;
    const int64_t small = std::min(hidden, bounds.hidden);
    // width * small / hidden, to the nearest multiple of 8 above 0.
    const auto scaled = [&](int64_t width) {
        return std::max<int64_t>(8, (width * small + 4 * hidden) / (8 * hidden) * 8);
    };
    LayerShape shape;
    shape.hidden = scaled(hidden);
    shape.intermediate = scaled(model.intermediate);
    shape.num_experts =
        std::min<int64_t>(model.experts, std::max<int64_t>(bounds.experts, model.top_k + 2));
    shape.top_k = model.top_k;
    shape.shared_intermediate =
        model.shared_intermediate > 0 ? scaled(model.shared_intermediate) : 0;
    shape.activation = model.activation;
    return shape;
}

}  // namespace mok::cli
