#include "cli/bench/timed_layer.h"

#include "cli/common/random.h"

namespace mok::cli {

const char* pass_name(BenchPass pass) {
    switch (pass) {
        case BenchPass::Forward:
            return "forward";
        case BenchPass::ForwardInference:
            return "forward-inference";
        default:
            return "backward";
    }
}

void draw_routing(BenchCase& c) {
    c.topk_ids = routed_ids(c.routing, c.shape, c.num_ranks, c.tokens_per_rank, c.seed);
    Random random(c.seed + 1);
    c.topk_weights.resize(c.topk_ids.size());
    const int64_t k = c.shape.top_k;
    for (size_t token = 0; token < c.topk_weights.size(); token += k) {
        float* weights = c.topk_weights.data() + token;
        double sum = 0.0;
        for (int64_t i = 0; i < k; ++i) {
            weights[i] = static_cast<float>(0.1 + random.uniform());
            sum += weights[i];
        }
        for (int64_t i = 0; i < k; ++i) weights[i] = static_cast<float>(weights[i] / sum);
    }
}

}  // namespace mok::cli
