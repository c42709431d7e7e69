#pragma once

#include "kernels/forward_params.h"

namespace mok::kernels {

// The routed tiles whose rows of x GateUp gathers from where they lie; the exchange brings the
// others' into the ring. A gathered block of x costs more than one that lies in the ring, so only
// what the CTAs work on before the first rows can be there is gathered: of the macrobatch that is
// worked on first one task for each CTA, rounded up to whole experts, because tiles of one expert
// are visited in an order of their own.
__device__ inline plan::VisitRange gathered_tiles(const ForwardParams& p) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& t = p.pass.table;
    const int32_t tiles = plan::num_tiles(problem, t);
    if (!p.gathers_own_rows || tiles == 0) return {0, 0};
    const int32_t first_macro =
        plan::walks_down(p.pass.kind) ? plan::num_macrobatches(problem, t) - 1 : 0;
    const int32_t begin = first_macro * (problem.macrobatch_rows / plan::kTileRows);
    const int32_t wave =
        plan::ceil_div(static_cast<int32_t>(gridDim.x), plan::gate_up_parts(problem, false));
    const int32_t last = plan::min_of(begin + wave, tiles) - 1;
    return {begin, plan::segment_end(t, t.tile_expert[last]) / plan::kTileRows};
}

}  // namespace mok::kernels
