#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

#include "openmok/shape.h"

namespace mok::train {

// Something the user asked for that cannot be done. what() is one sentence.
class InputError : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

// Everything the master weights depend on besides the text. The number of ranks and of workers is
// not here: no weight depends on them.
struct Config {
    int64_t num_experts = 16;
    int64_t top_k = 2;
    int64_t hidden = 128;
    int64_t intermediate = 128;
    int64_t shared_intermediate = 0;        // width of the shared expert; 0: none
    Precision precision = Precision::BF16;  // of the experts' products

    int64_t window = 8;             // bytes of context with a row of their own for every offset
    int64_t ngram_order = 5;        // hashed n-grams of the last 2..order bytes; 1: none
    int64_t ngram_rows = 4096;      // rows of each order's table
    int64_t num_sequences = 16;     // of a step
    int64_t sequence_length = 128;  // bytes that a sequence predicts; a multiple of 128

    int64_t steps = 1500;
    int64_t warmup_steps = 50;
    double learning_rate = 4e-3;  // the peak; a cosine brings it to a tenth of it
    double weight_decay = 0.1;    // of matrices, not of embeddings and norms
    double max_grad_norm = 1.0;
    double balance = 0.01;  // factor of the load-balance loss
    uint64_t seed = 1;

    LayerShape layer_shape() const;
    int64_t tokens_per_step() const { return num_sequences * sequence_length; }
    // Bytes before a sequence's first target that its first prediction reads.
    int64_t context_bytes() const { return window > ngram_order ? window : ngram_order; }
    // Name -> value, every field: what a checkpoint records and a resumed run must match.
    std::map<std::string, std::string> fields() const;
    // Throws InputError for a value outside its range. What the layer cannot take, it says itself.
    void validate() const;
};

}  // namespace mok::train
