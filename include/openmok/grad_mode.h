#pragma once

namespace mok {

// How a pass stores the gradient of a weight.
enum class GradMode {
    Overwrite,   // new = round(g)
    Accumulate,  // new = round(old + g), g the whole pass's FP32 sum
    // The sum itself goes on from old, FP32 only: a chain over ranks of `wgrad` calls for a weight
    // that every rank holds gives the bits of one rank with all tokens, where rank boundaries are
    // multiples of 128 tokens.
    Chain,
};

}  // namespace mok
