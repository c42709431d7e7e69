#pragma once

#include <cuda_runtime_api.h>

#include "plan/traffic.h"

namespace mok::kernels {

// Bytes of the rows that passes have moved between this rank and each home rank, on the device.
struct RowCounts {
    unsigned long long pulled[plan::kMaxRanks], pushed[plan::kMaxRanks];
};

// Adds the rows of a pass, as plan/traffic.h has them with one copy per pull group.
cudaError_t launch_count_rows(const plan::Pass& pass, RowCounts* counts, cudaStream_t stream);

}  // namespace mok::kernels
