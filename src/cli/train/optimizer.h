#pragma once

#include <cstdint>
#include <vector>

#include "cli/train/batch.h"
#include "cli/train/config.h"
#include "cli/train/exchange.h"
#include "cli/train/parameters.h"

namespace mok::train {

// From the gradients of the sequences and of the layer to the next weights. The weights are cut
// into blocks whose bounds depend on the configuration alone; part r of R of the work is blocks r,
// r + R, ...
class Optimizer {
  public:
    Optimizer(const Config& config, Parameters& parameters, const Batch& batch);

    // Called by every rank once the gradients of all sequences and experts are there, and every
    // token's gradient of the embedding. `step` counts from 1. Returns, to every rank, once all
    // weights are new; the result is the gradient's norm.
    double update(const Exchange& exchange, int64_t step);

  private:
    struct Block {
        Weight weight;
        int64_t begin, end;  // elements of the buffers
    };
    void cut_blocks();
    void gather_gradients(Exchange::Duty duty);
    void add_sequences(const Block& block);
    double gradient_norm() const;
    void step_block(const Block& block, int64_t step, double gradient_scale);

    const Config& config_;
    Parameters& parameters_;
    const Batch& batch_;
    std::vector<Block> blocks_;
    std::vector<double> squares_;  // [blocks], of the gradients
};

}  // namespace mok::train
