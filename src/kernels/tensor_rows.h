#pragma once

#include <cstdint>

#include "math/host_device.h"

namespace mok::kernels {

// Sums in tensor memory: row r of a tile is lane r. Warp w of a warpgroup reaches lanes 32w up to
// 32w + 31 only, so each of the two consumers, a warpgroup each, takes 16 rows of every 32: the
// first of those of warp w of a consumer.
MOK_HD constexpr int32_t first_tensor_row(int32_t consumer, int32_t warp) {
    return 32 * warp + 16 * consumer;
}

}  // namespace mok::kernels
