#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cli/train/batch.h"
#include "cli/train/config.h"
#include "cli/train/exchange.h"
#include "cli/train/optimizer.h"
#include "cli/train/parameters.h"
#include "cli/train/sequence_pass.h"
#include "cli/train/text.h"
#include "openmok/layer.h"

namespace mok::train {

// What a run works on: one object for all ranks, or one of each (Copies).
struct Model {
    Model(const Config& config, const Text& text)
        : config(config),
          text(text),
          parameters(config),
          batch(config, parameters),
          optimizer(config, parameters, batch) {}

    const Config& config;
    const Text& text;
    Parameters parameters;
    Batch batch;
    Optimizer optimizer;
};

struct Evaluation {
    double bits_per_byte = 0.0;
    std::vector<int64_t> tokens_per_expert;  // [E]
};

enum class Routed { On, Zeroed };  // Zeroed: every choice is masked

// One rank's part of a run. Every rank makes the same calls in the same order (all collective).
class RankTrainer {
  public:
    // max_workers: see Tuning.
    RankTrainer(Model& model, const Group& group, Copies copies, int max_workers);

    // Step `step`, from 1. Returns the mean cross entropy of the batch in bits per byte.
    double step(int64_t step);
    // Over the sequences that begin at `starts`; with one model for all, every rank passes the same
    // `result`. Complete when the call returns.
    void evaluate(std::span<const int64_t> starts, Routed routed, Evaluation& result);

  private:
    // Sequences [first, end) of a batch are this rank's; an even split, the first ranks take one
    // more.
    struct Share {
        int64_t first, end;
    };
    Share share_of(int64_t num_sequences) const;
    std::vector<int64_t> sequences_of_ranks(int64_t num_sequences) const;
    Inputs inputs(Share share) const;
    // In FP8 quantised if the optimizer has changed them.
    Weights weights();
    ConstTensor topk_ids(Share share, Routed routed) const;
    Tensor layer_output(Share share);
    // What the layer's calls of one step have in common, where the group computes.
    struct LayerCall {
        const Schedule& schedule;
        Weights weights;
        Inputs inputs;
    };
    void layer_backward(Share share, const LayerCall& call, Context& context);
    // Gradients that any rank's part of the optimizer may read.
    void gather_gradients();
    double batch_bits(int64_t num_sequences) const;

    const Config& config_;
    Model& model_;
    Group group_;
    Exchange exchange_;
    int rank_;
    Workspace workspace_;
    std::optional<Fp8Weights> fp8_weights_;  // where the precision is of FP8
    SequencePass pass_;
    std::vector<int32_t> masked_ids_;  // [T, K], all -1
};

}  // namespace mok::train
