#include "plan/make_problem.h"

#include <algorithm>

#include "plan/granularity.h"

namespace mok::plan {

Problem make_problem(const LayerShape& shape, const Tuning& tuning, int num_ranks, int rank,
                     int64_t max_tokens) {
    Problem p{};
    p.num_ranks = num_ranks;
    p.rank = rank;
    p.hidden = static_cast<int32_t>(shape.hidden);
    p.intermediate = static_cast<int32_t>(shape.intermediate);
    p.num_experts = static_cast<int32_t>(shape.num_experts);
    p.top_k = static_cast<int32_t>(shape.top_k);
    p.shared_intermediate = static_cast<int32_t>(shape.shared_intermediate);
    p.max_tokens = static_cast<int32_t>(max_tokens);
    p.keep_x = tuning.keep_x;
    p.fp8_dispatch = tuning.fp8_dispatch;
    p.precision = shape.precision;
    // No routing can use more rows than max_slots.
    const int64_t most = std::max<int64_t>(max_slots(p), kTileRows);
    p.macrobatch_rows = static_cast<int32_t>(std::min(tuning.macrobatch_rows, most));
    p.context_rows =
        static_cast<int32_t>(tuning.context_rows < 0 ? most : std::min(tuning.context_rows, most));
    p.minibatch_rows = static_cast<int32_t>(tuning.minibatch_rows);
    return p;
}

// Each change of phase costs the cache its order: a forward whose minibatches are twice as large
// runs 2-4 % faster on an H200 and no faster beyond (docs/performance.md).
constexpr int32_t kForwardGrains = 2;

int32_t minibatch_rows(const Problem& p, int64_t workers, PassKind kind) {
    if (p.minibatch_rows > 0) return min_of(p.minibatch_rows, p.macrobatch_rows);
    const Granularity g = is_backward(kind)
                              ? backward_granularity(workers, p.hidden, p.intermediate)
                              : forward_granularity(workers, p.hidden, p.intermediate);
    const int32_t rows = is_backward(kind) ? g.default_rows : kForwardGrains * g.default_rows;
    return min_of(rows, p.macrobatch_rows);
}

}  // namespace mok::plan
