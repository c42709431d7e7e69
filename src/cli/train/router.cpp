#include "cli/train/router.h"

#include <algorithm>

#include "cli/train/dense.h"

namespace mok::train {
namespace {

// The expert of the largest p among those not chosen yet.
int32_t next_expert(const float* probs, int64_t num_experts, std::span<const int32_t> chosen) {
    int32_t best = -1;
    for (int32_t e = 0; e < num_experts; ++e) {
        if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
        if (best < 0 || probs[e] > probs[best]) best = e;
    }
    return best;
}

}  // namespace

void choose_experts(RouterShape shape, const RouterChoice& choice) {
    std::fill_n(choice.expert_count, shape.num_experts, 0);
    std::fill_n(choice.prob_sum, shape.num_experts, 0.0);
    for (int64_t row = 0; row < shape.rows; ++row) {
        float* probs = choice.probs + row * shape.num_experts;
        int32_t* ids = choice.ids + row * shape.top_k;
        float* weights = choice.weights + row * shape.top_k;
        softmax(probs, shape.num_experts);
        float sum = 0.0f;
        for (int64_t c = 0; c < shape.top_k; ++c) {
            ids[c] = next_expert(probs, shape.num_experts, {ids, static_cast<size_t>(c)});
            ++choice.expert_count[ids[c]];
            sum += probs[ids[c]];
        }
        for (int64_t c = 0; c < shape.top_k; ++c) weights[c] = probs[ids[c]] / sum;
        for (int64_t e = 0; e < shape.num_experts; ++e) choice.prob_sum[e] += probs[e];
    }
}

Balance load_balance(RouterShape shape, const BatchStatistics& batch, double factor) {
    const int64_t num_experts = shape.num_experts;
    const int64_t num_sequences = static_cast<int64_t>(batch.prob_sum.size()) / num_experts;
    const double tokens = static_cast<double>(batch.num_tokens);
    Balance balance;
    balance.d_prob.resize(num_experts);
    for (int64_t e = 0; e < num_experts; ++e) {
        int64_t routes = 0;
        double prob_sum = 0.0;
        for (int64_t s = 0; s < num_sequences; ++s) {
            routes += batch.expert_count[s * num_experts + e];
            prob_sum += batch.prob_sum[s * num_experts + e];
        }
        const double fraction =
            static_cast<double>(routes) / (tokens * static_cast<double>(shape.top_k));
        const double slope = factor * static_cast<double>(num_experts) * fraction / tokens;
        balance.loss += slope * prob_sum;
        balance.d_prob[e] = static_cast<float>(slope);
    }
    return balance;
}

void choose_experts_backward(RouterShape shape, const RouterGrad& grad) {
    std::vector<float> d_probs(shape.num_experts);
    for (int64_t row = 0; row < shape.rows; ++row) {
        const float* probs = grad.probs + row * shape.num_experts;
        const int32_t* ids = grad.ids + row * shape.top_k;
        const float* weights = grad.weights + row * shape.top_k;
        const float* d_weights = grad.d_weights + row * shape.top_k;
        float* d_logits = grad.d_logits + row * shape.num_experts;

        float chosen_sum = 0.0f, mean = 0.0f;
        for (int64_t c = 0; c < shape.top_k; ++c) {
            chosen_sum += probs[ids[c]];
            mean += d_weights[c] * weights[c];
        }
        std::copy_n(grad.d_prob, shape.num_experts, d_probs.begin());
        for (int64_t c = 0; c < shape.top_k; ++c) {
            d_probs[ids[c]] += (d_weights[c] - mean) / chosen_sum;
        }
        float along = 0.0f;
        for (int64_t e = 0; e < shape.num_experts; ++e) along += d_probs[e] * probs[e];
        for (int64_t e = 0; e < shape.num_experts; ++e) {
            d_logits[e] = probs[e] * (d_probs[e] - along);
        }
    }
}

}  // namespace mok::train
