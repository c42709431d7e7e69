#pragma once

#include <cstdint>
#include <span>

#include "cli/train/batch.h"
#include "cli/train/config.h"
#include "cli/train/parameters.h"
#include "cli/train/router.h"

// The dense part of the model, one sequence at a time:
//     x = embedding of the last bytes,  n = rms_norm(x),  y = x + MoE(n; router(n)),
//     logits = Head rms_norm(y).
// `s` is the sequence's place in the batch. Everything here depends on that sequence alone (and in
// before_layer_backward on the statistics of the global batch), so no bit depends on its rank.
namespace mok::train {

class SequencePass {
  public:
    // Keeps all three by reference. One object a rank: it owns the rank's scratch.
    SequencePass(const Config& config, Parameters& parameters, Batch& batch);

    // Embedding, norm and router; `bytes`: the sequence with its context.
    void before_layer(int64_t s, std::span<const uint8_t> bytes);
    // Residual, norm and head on the layer's output in batch.y; the loss.
    void after_layer(int64_t s);
    // The same, then d_y and the sequence's gradients of head and its norm. `scale`: what a token's
    // loss counts, 1 / N.
    void after_layer_with_backward(int64_t s, float scale);
    // Takes d_x_norm and d_router_weights, the layer's, to d_x (in batch.d_y); the sequence's
    // gradients of router and its norm.
    void before_layer_backward(int64_t s, const Balance& balance);

  private:
    double head_forward(int64_t s, float scale);
    float* dense_gradient(int64_t s, Weight weight);
    RouterShape router_shape() const;

    const Config& config_;
    Parameters& parameters_;
    Batch& batch_;
    Buffer logits_;         // [L, 256]
    Buffer d_norm_;         // [L, H]
    Buffer router_logits_;  // [L, E]
};

}  // namespace mok::train
