#include "cli/train/sequence_pass.h"

#include <algorithm>

#include "cli/train/dense.h"
#include "cli/train/embedding.h"

namespace mok::train {

SequencePass::SequencePass(const Config& config, Parameters& parameters, Batch& batch)
    : config_(config),
      parameters_(parameters),
      batch_(batch),
      logits_(config.sequence_length * 256),
      d_norm_(config.sequence_length * config.hidden),
      router_logits_(config.sequence_length * config.num_experts) {}

RouterShape SequencePass::router_shape() const {
    return {config_.sequence_length, config_.num_experts, config_.top_k};
}

float* SequencePass::dense_gradient(int64_t s, Weight weight) {
    return batch_.dense_gradients.data() + s * batch_.dense_stride +
           parameters_.info(weight).offset;
}

void SequencePass::before_layer(int64_t s, std::span<const uint8_t> bytes) {
    const int64_t length = config_.sequence_length, width = config_.hidden;
    const int64_t first = s * length;
    int32_t* rows = batch_.rows.data() + first * num_features(config_);
    float* x = batch_.x.data() + first * width;
    float* x_norm = batch_.x_norm.data() + first * width;

    find_rows(config_, bytes, rows);
    std::copy_n(bytes.data() + config_.context_bytes(), length, batch_.targets.data() + first);
    embed(config_, parameters_.value(Weight::Embedding), rows, x);
    rms_norm({length, width}, x, parameters_.value(Weight::MoeNorm), x_norm,
             batch_.x_inv_rms.data() + first);

    RouterChoice choice;
    choice.probs = batch_.probs.data() + first * config_.num_experts;
    choice.ids = batch_.ids.data() + first * config_.top_k;
    choice.weights = batch_.router_weights.data() + first * config_.top_k;
    choice.expert_count = batch_.expert_count.data() + s * config_.num_experts;
    choice.prob_sum = batch_.prob_sum.data() + s * config_.num_experts;
    linear({length, width, config_.num_experts}, x_norm, parameters_.value(Weight::Router),
           choice.probs);
    choose_experts(router_shape(), choice);
}

double SequencePass::head_forward(int64_t s, float scale) {
    const int64_t length = config_.sequence_length, width = config_.hidden;
    const int64_t first = s * length;
    const float* x = batch_.x.data() + first * width;
    float* y = batch_.y.data() + first * width;
    float* y_norm = batch_.y_norm.data() + first * width;

    for (int64_t i = 0; i < length * width; ++i) y[i] += x[i];
    rms_norm({length, width}, y, parameters_.value(Weight::HeadNorm), y_norm,
             batch_.y_inv_rms.data() + first);
    linear({length, width, 256}, y_norm, parameters_.value(Weight::Head), logits_.data());
    return cross_entropy(length, batch_.targets.data() + first, scale, logits_.data());
}

void SequencePass::after_layer(int64_t s) {
    batch_.loss[s] = head_forward(s, 1.0f);
}

void SequencePass::after_layer_with_backward(int64_t s, float scale) {
    const int64_t length = config_.sequence_length, width = config_.hidden;
    const int64_t first = s * length;
    const LinearShape head{length, width, 256};
    float* d_y = batch_.d_y.data() + first * width;

    batch_.loss[s] = head_forward(s, scale);
    linear_wgrad(head, logits_.data(), batch_.y_norm.data() + first * width,
                 dense_gradient(s, Weight::Head));
    linear_dgrad(head, logits_.data(), parameters_.value(Weight::Head), d_norm_.data());
    std::fill_n(d_y, length * width, 0.0f);
    rms_norm_backward({length, width}, batch_.y.data() + first * width,
                      parameters_.value(Weight::HeadNorm), batch_.y_inv_rms.data() + first,
                      d_norm_.data(), d_y, dense_gradient(s, Weight::HeadNorm));
}

void SequencePass::before_layer_backward(int64_t s, const Balance& balance) {
    const int64_t length = config_.sequence_length, width = config_.hidden;
    const int64_t first = s * length;
    const LinearShape router{length, width, config_.num_experts};
    float* d_x_norm = batch_.d_x_norm.data() + first * width;

    RouterGrad grad;
    grad.probs = batch_.probs.data() + first * config_.num_experts;
    grad.ids = batch_.ids.data() + first * config_.top_k;
    grad.weights = batch_.router_weights.data() + first * config_.top_k;
    grad.d_weights = batch_.d_router_weights.data() + first * config_.top_k;
    grad.d_prob = balance.d_prob.data();
    grad.d_logits = router_logits_.data();
    choose_experts_backward(router_shape(), grad);
    linear_wgrad(router, router_logits_.data(), batch_.x_norm.data() + first * width,
                 dense_gradient(s, Weight::Router));
    linear_dgrad(router, router_logits_.data(), parameters_.value(Weight::Router), d_norm_.data());
    for (int64_t i = 0; i < length * width; ++i) d_x_norm[i] += d_norm_[i];
    rms_norm_backward({length, width}, batch_.x.data() + first * width,
                      parameters_.value(Weight::MoeNorm), batch_.x_inv_rms.data() + first, d_x_norm,
                      batch_.d_y.data() + first * width, dense_gradient(s, Weight::MoeNorm));
}

}  // namespace mok::train
