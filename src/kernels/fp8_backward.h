#pragma once

#include <cuda_runtime_api.h>

#include "kernels/backward_params.h"
#include "kernels/fp8_params.h"

namespace mok::kernels {

// Gate and up, [rows, I], scales by tile.
struct Fp8GateUp {
    Fp8Rows gate, up;
};

// What the routed part of a backward in Fp8Block reads and writes beside BackwardParams. Rows in
// memory are BF16; their elements are made as they are loaded: rows of x, d_y, d_gate, d_up along
// the row, those of weight gradients along the slots.
struct Fp8BackwardParams : BackwardParams {
    Fp8GateUp ring_saved, kept_saved;  // Replay or the forward -> DownDgrad
    // Of the weights [I, H], [I, H], [H, I], per expert [ceil(rows / 128)][ceil(cols / 128)].
    const float *gate_weight_scales, *up_weight_scales, *down_weight_scales;
};
// ring.gate, ring.up, kept.gate and kept.up are of elements, boxes of 64 rows x 64 columns without
// a swizzle; gate, up and down are not used. Weights are elements, boxes of 128 rows x 128 of K.
struct Fp8BackwardMaps : BackwardMaps {
    CUtensorMap gate_store, up_store;  // of ring.gate and ring.up: boxes of 8 rows x 128 columns
    CUtensorMap gate8, up8;            // [E_l, I, padded H]
    CUtensorMap gate_t8, up_t8;        // [E_l, H, padded I]
    CUtensorMap down_t8;               // [E_l, I, padded H]

    static constexpr int32_t kSavedBoxBytes = 64 * 64;
    static constexpr bool kHasFp8Weights = true;
};

// Launches the routed part of a backward (Backward, BackwardInput or Wgrad) in Fp8Block, as
// launch_backward does in BF16. The pass has no shared expert: its problem says 0 of
// shared_intermediate. signals, tickets and aborted must be zero.
cudaError_t launch_fp8_backward(const Fp8BackwardParams& params, const Fp8BackwardMaps& maps,
                                int max_sms, cudaStream_t stream);

}  // namespace mok::kernels
