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
// memory are BF16; operands of products are quantised from them once, by units of their own
// (fp8_units.cuh), but for x in Replay, which is quantised as it is loaded.
struct Fp8BackwardParams : BackwardParams {
    Fp8GateUp ring_saved, kept_saved;  // Replay or the forward -> DownDgrad
    Fp8Rows d_y, d_gate, d_up;         // [B, H], [B, I], [B, I] of the ring, scales by tile
    // In blocks along the slots, plan::Fp8SlotsMap: [tiles of the ring][columns][128], scales
    // [tiles][columns rounded up to 128].
    Fp8Rows x_slots, d_y_slots;                        // columns: H
    Fp8Rows w_hidden_slots, d_gate_slots, d_up_slots;  // columns: I
    uint32_t* quantised;  // [kQuantisedKinds][1 + max_tiles], zero at the start
    // Of the weights [I, H], [I, H], [H, I], per expert [ceil(rows / 128)][ceil(cols / 128)].
    const float *gate_weight_scales, *up_weight_scales, *down_weight_scales;
};

// ring.gate, ring.up, kept.gate and kept.up are of elements, boxes of 64 rows x 64 columns without
// a swizzle; gate, up and down are not used. The others are of elements in boxes of 128 rows x 128:
// weights, and what units have made.
struct Fp8BackwardMaps : BackwardMaps {
    CUtensorMap gate8, up8;                                // [E_l, I, padded H]
    CUtensorMap gate_t8, up_t8;                            // [E_l, H, padded I]
    CUtensorMap down_t8;                                   // [E_l, I, padded H]
    CUtensorMap d_y8, d_gate8, d_up8;                      // [B, padded H], [B, padded I] twice
    CUtensorMap x_slots, d_y_slots;                        // [tiles of the ring, H, 128]
    CUtensorMap w_hidden_slots, d_gate_slots, d_up_slots;  // [tiles of the ring, I, 128]

    static constexpr int32_t kSavedBoxBytes = 64 * 64;
};

// Launches the routed part of a backward (Backward, BackwardInput or Wgrad) in Fp8Block, as
// launch_backward does in BF16. The pass has no shared expert: its problem says 0 of
// shared_intermediate. signals, tickets, aborted and quantised must be zero.
cudaError_t launch_fp8_backward(const Fp8BackwardParams& params, const Fp8BackwardMaps& maps,
                                int max_sms, cudaStream_t stream);

}  // namespace mok::kernels
