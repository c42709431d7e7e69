#include "cli/train/batch.h"

#include "cli/train/embedding.h"

namespace mok::train {

Batch::Batch(const Config& config, const Parameters& parameters)
    : dense_stride(parameters.dense_size()) {
    const int64_t tokens = config.tokens_per_step(), sequences = config.num_sequences;
    rows.resize(tokens * num_features(config));
    targets.resize(tokens);
    for (Buffer* wide : {&x, &x_norm, &y, &y_norm, &d_y, &d_x_norm}) {
        wide->resize(tokens * config.hidden);
    }
    for (Buffer* column : {&x_inv_rms, &y_inv_rms}) column->resize(tokens);
    probs.resize(tokens * config.num_experts);
    ids.resize(tokens * config.top_k);
    for (Buffer* choices : {&router_weights, &d_router_weights}) {
        choices->resize(tokens * config.top_k);
    }
    expert_count.resize(sequences * config.num_experts);
    prob_sum.resize(sequences * config.num_experts);
    loss.resize(sequences);
    dense_gradients.resize(sequences * dense_stride);
}

}  // namespace mok::train
