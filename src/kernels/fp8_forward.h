#pragma once

#include <cuda_runtime_api.h>

#include "kernels/fp8_params.h"

namespace mok::kernels {

// Launches the routed part of a forward (or of a recompute) in Fp8Block of one rank: steps 4..7 of
// docs/design.md on at most max_sms multiprocessors, as launch_forward does in BF16. The pass has
// no shared expert: its problem says 0 of shared_intermediate. signals, tickets and aborted must be
// zero.
cudaError_t launch_fp8_forward(const Fp8ForwardParams& params, const Fp8ExpertMaps& maps,
                               int max_sms, cudaStream_t stream);

}  // namespace mok::kernels
