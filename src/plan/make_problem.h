#pragma once

#include <cstdint>

#include "openmok/shape.h"
#include "plan/pass.h"

namespace mok::plan {

// The problem of one rank between calls: num_tokens is 0, and minibatch_rows the tuning's, where 0
// stands for the default rule below. B and C are cut to what some routing can use. Host only;
// problems_of (validate.h) has no sentence on the arguments.
Problem make_problem(const LayerShape& shape, const Tuning& tuning, int num_ranks, int rank,
                     int64_t max_tokens);

// Minibatch rows of a pass on `workers` workers for a problem between calls: the tuning's, or by
// default two full waves a phase (granularity.h) in a backward and four in a forward, never more
// than the ring's rows.
int32_t minibatch_rows(const Problem& p, int64_t workers, PassKind kind);

}  // namespace mok::plan
