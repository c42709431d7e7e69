#pragma once

#include <cstdint>
#include <string>

#include "cli/common/random_case.h"
#include "openmok/shape.h"
#include "plan/make_problem.h"

namespace mok::cli {

// What `mok plan` is asked about: a layer, a group of ranks with T tokens each, and N workers.
struct PlanRequest {
    std::string model;  // its name, for the reader
    LayerShape shape;
    Tuning tuning;
    int64_t tokens_per_rank = 0;  // T
    int num_ranks = 1;            // R
    int num_sms = 1;              // N: compute workers of a rank
    int64_t num_layers = 1;       // L
    int64_t in_flight = 1;        // M: forwards of one layer whose backwards are still to come
    uint64_t seed = 1;            // of the random routings

    // One rank's problem in a call with T tokens, for a pass of a kind.
    plan::Problem problem(int rank, plan::PassKind kind) const {
        plan::Problem p = plan::make_problem(shape, tuning, num_ranks, rank, tokens_per_rank);
        p.num_tokens = p.max_tokens;
        p.minibatch_rows = plan::minibatch_rows(p, num_sms, kind);
        return p;
    }
};

}  // namespace mok::cli
