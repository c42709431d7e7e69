#pragma once

#include <cstdint>
#include <vector>

#include "cli/train/config.h"
#include "cli/train/matrix.h"
#include "cli/train/parameters.h"

namespace mok::train {

// What a step keeps of the global batch: N = num_sequences * sequence_length tokens in global
// order, so that a rank's tokens, and a sequence's, are rows without gaps. A sequence's rows are
// written by the rank that has the sequence; where ranks have a batch each, those that others read
// are gathered (exchange.h).
struct Batch {
    Batch(const Config& config, const Parameters& parameters);

    std::vector<int32_t> rows;     // [N, F] of the embedding
    std::vector<uint8_t> targets;  // [N]
    Buffer x;                      // [N, H] embedding
    Buffer x_norm;                 // [N, H] input of router and experts
    Buffer x_inv_rms;              // [N]
    Buffer probs;                  // [N, E] of the router
    std::vector<int32_t> ids;      // [N, K]
    Buffer router_weights;         // [N, K]
    Buffer y;                      // [N, H] the layer's output, then x + it
    Buffer y_norm;                 // [N, H] input of the head
    Buffer y_inv_rms;              // [N]
    Buffer d_y;                    // [N, H] gradient of y, then of x
    Buffer d_x_norm;               // [N, H] from the layer, then with the router's part
    Buffer d_router_weights;       // [N, K]

    // A row a sequence.
    std::vector<int64_t> expert_count;  // [sequences, E]
    std::vector<double> prob_sum;       // [sequences, E]
    std::vector<double> loss;           // [sequences], nats, summed over the sequence's tokens
    Buffer dense_gradients;             // [sequences, dense_stride], laid out like Parameters
    int64_t dense_stride;
};

}  // namespace mok::train
