#pragma once

#include <cuda_runtime_api.h>

#include "kernels/block_scaled_params.h"

namespace mok::kernels {

// Launches the routed part of a forward (or of a recompute) in Mxfp8 of one rank: steps 4..7 of
// docs/design.md on at most max_sms multiprocessors, as launch_forward does in BF16; sm_100a and
// sm_103a alone. The pass has no shared expert: its problem says 0 of
// shared_intermediate. signals, tickets and aborted must be zero.
cudaError_t launch_block_scaled_forward(const BlockScaledForwardParams& params,
                                        const BlockScaledExpertMaps& maps, int max_sms,
                                        cudaStream_t stream);
// Its kernels: of pairs, which need two multiprocessors, and of CTAs alone.
cudaError_t launch_block_scaled_forward_pairs(const BlockScaledForwardParams& params,
                                              const BlockScaledExpertMaps& maps, int max_sms,
                                              cudaStream_t stream);
cudaError_t launch_block_scaled_forward_alone(const BlockScaledForwardParams& params,
                                              const BlockScaledExpertMaps& maps, int max_sms,
                                              cudaStream_t stream);

}  // namespace mok::kernels
