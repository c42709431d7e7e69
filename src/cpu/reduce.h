#pragma once

#include "cpu/rank_pass.h"

namespace mok::cpu {

// What a home rank does with the rows that the expert ranks pushed, after the second rank barrier.
// ids: this rank's own choices [T, K]; a masked choice is left out, whatever its weight holds.

// out[t] = s * shared[t] + sum over choices 0..K-1 of w * y, FP32 in this order, rounded once.
void reduce_output(const RankPass& d, const int32_t* ids, const Tensor& out);

// d_x[t] = shared d_x[t] + sum over choices of d_x; d_topk_weights, 0 where masked;
// d_shared_weights[t] = the sum of the token's partial sums.
void reduce_input_grads(const RankPass& d, const int32_t* ids, const InputGrads& grads);

}  // namespace mok::cpu
