#pragma once

#include <cstdint>
#include <span>

#include "cli/train/config.h"

// The embedding: x of a position is the sum of F rows of one table. F = window + order - 1: for
// every offset j < window the row of the byte j places back, and for every n = 2..order the row of
// the last n bytes, hashed into that order's own `ngram_rows` rows.
namespace mok::train {

int64_t num_features(const Config& config);
int64_t embedding_rows(const Config& config);

// The rows of every position of a sequence, [L, F]. `bytes` begins with the config's
// context_bytes() bytes of context, of which the last is the first position's own byte; L more
// follow, the targets.
void find_rows(const Config& config, std::span<const uint8_t> bytes, int32_t* rows);

// x [L, H]: the rows' sum, in order of the features.
void embed(const Config& config, const float* table, const int32_t* rows, float* x);

// The columns [begin, end) of d_table [embedding_rows, H], over all tokens of the batch in order:
// rows [num_tokens, F], d_x [num_tokens, H]. Overwrites.
struct EmbeddingGrad {
    const int32_t* rows;
    const float* d_x;
    int64_t num_tokens;
    float* d_table;
};
void embed_backward(const Config& config, const EmbeddingGrad& grad, int64_t begin, int64_t end);

}  // namespace mok::train
