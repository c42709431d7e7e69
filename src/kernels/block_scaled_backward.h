#pragma once

#include <cuda_runtime_api.h>

#include "kernels/mxfp8_params.h"

namespace mok::kernels {

// Weights of the routed experts as an operand of block-scaled products: E4M3 elements in boxes of
// 128 rows x 128 columns, 128-byte swizzle, and their scales in tiles of 128 x 4, [tiles of rows *
// tiles of k] of an expert.
struct BlockScaledWeight {
    CUtensorMap elements, scales;
};
// ring.gate, ring.up, kept.gate and kept.up are of elements, boxes of 64 rows x 64 columns without
// a swizzle; gate, up and down are not used.
struct BlockScaledBackwardMaps : BackwardMaps {
    BlockScaledWeight gate8, up8;      // [E_l, I, padded H]
    BlockScaledWeight gate_t8, up_t8;  // [E_l, H, padded I]
    BlockScaledWeight down_t8;         // [E_l, I, padded H]
};

// Launches the routed part of a backward in Mxfp8 of one rank (Backward, BackwardInput or Wgrad) on
// at most max_sms multiprocessors, as launch_backward does in BF16; sm_100a and sm_103a alone. Rows
// in memory are BF16 and become elements as they are loaded, as for launch_mxfp8_backward. The pass
// has no shared expert: its problem says 0 of shared_intermediate. signals, tickets and aborted
// must be zero.
cudaError_t launch_block_scaled_backward(const Mxfp8BackwardParams& params,
                                         const BlockScaledBackwardMaps& maps, int max_sms,
                                         cudaStream_t stream);

}  // namespace mok::kernels
