#pragma once

#include <cstdint>
#include <vector>

#include "cli/common/random_case.h"

// Batches made of the tokens of other batches, and the rows of results that belong to them.
namespace mok::cli {

// The same weights with the tokens of `c` at these indices, in this order.
RandomCase take_tokens(const RandomCase& c, const std::vector<int64_t>& tokens);

// Tokens at and after `first` become those of `other`, a case of the same shape and size.
RandomCase replace_tokens(const RandomCase& c, int64_t first, const RandomCase& other);

// What a result says of these tokens: output, d_x and the routers' gradients, without any weight's.
GlobalResult take_rows(const LayerShape& shape, const GlobalResult& r,
                       const std::vector<int64_t>& tokens);

// num_tokens over ranks in blocks of 128 tokens, so that every rank boundary is a multiple of 128.
std::vector<int64_t> split_in_blocks(int64_t num_tokens, int num_ranks);

}  // namespace mok::cli
