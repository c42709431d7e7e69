#pragma once

#include <cstdint>

#include "math/host_device.h"

namespace mok::kernels {

// Byte of 16-byte chunk c of row r in a block of rows of 128 bytes, at a multiple of 1024 bytes,
// with the 128-byte swizzle of the copy engine and the tensor cores.
MOK_HD constexpr uint32_t chunk_offset(int r, int c) {
    return r * 128 + ((c ^ (r & 7)) << 4);
}

}  // namespace mok::kernels
