#pragma once

#include <cuda_runtime_api.h>

#include "kernels/backward.h"
#include "kernels/forward.h"

// The kernels of every GPU architecture; launch_forward and launch_backward choose among those that
// the build has.
namespace mok::kernels {

// sm_90a.
cudaError_t launch_forward_hopper(const ForwardParams& params, const ExpertMaps& routed,
                                  const ExpertMaps& shared, int max_sms, cudaStream_t stream);
cudaError_t launch_backward_hopper(const BackwardParams& params, const BackwardMaps& routed,
                                   const BackwardMaps& shared, int max_sms, cudaStream_t stream);
// sm_100a, sm_103a. Pairs need two multiprocessors.
cudaError_t launch_forward_blackwell(const ForwardParams& params, const ExpertMaps& routed,
                                     const ExpertMaps& shared, int max_sms, cudaStream_t stream);
cudaError_t launch_forward_blackwell_pairs(const ForwardParams& params, const ExpertMaps& routed,
                                           const ExpertMaps& shared, int max_sms,
                                           cudaStream_t stream);
cudaError_t launch_backward_blackwell(const BackwardParams& params, const BackwardMaps& routed,
                                      const BackwardMaps& shared, int max_sms, cudaStream_t stream);
cudaError_t launch_backward_blackwell_pairs(const BackwardParams& params,
                                            const BackwardMaps& routed, const BackwardMaps& shared,
                                            int max_sms, cudaStream_t stream);

}  // namespace mok::kernels
