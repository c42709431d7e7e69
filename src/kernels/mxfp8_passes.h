#pragma once

#include <cuda_runtime_api.h>

#include "kernels/mxfp8_params.h"

namespace mok::kernels {

// Launches the routed part of a forward (or of a recompute) in Mxfp8 of one rank: steps 4..7 of
// docs/design.md on at most max_sms multiprocessors, as launch_forward does in BF16; the maps of
// gate, up and down are those of BF16 numbers. signals, tickets and aborted must be zero.
cudaError_t launch_mxfp8_forward(const Mxfp8ForwardParams& params, const ExpertMaps& maps,
                                 int max_sms, cudaStream_t stream);

// The same of a backward (Backward, BackwardInput or Wgrad).
cudaError_t launch_mxfp8_backward(const Mxfp8BackwardParams& params, const Mxfp8BackwardMaps& maps,
                                  int max_sms, cudaStream_t stream);

}  // namespace mok::kernels
