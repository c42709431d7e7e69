#include "kernels/count_rows.h"

namespace mok::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 64;

struct Counter {
    const plan::Pass& pass;
    __device__ void add(plan::TaskKind kind, bool leads_only, int64_t row_bytes,
                        unsigned long long* counts) const {
        const plan::VisitRange tiles = plan::routed_range(pass, kind);
        const int32_t end = tiles.end * plan::kTileRows;
        const int32_t step = static_cast<int32_t>(gridDim.x * kThreads);
        int32_t slot = tiles.begin * plan::kTileRows +
                       static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
        for (; slot < end; slot += step) {
            const int32_t home = pass.table.slot_home[slot];
            if (home < 0 || (leads_only && pass.table.slot_lead[slot] != slot)) continue;
            atomicAdd(counts + home, static_cast<unsigned long long>(
                                         row_bytes));  // a sum: no result depends on the order
        }
    }
};

__global__ void __launch_bounds__(kThreads)
    count_rows(const __grid_constant__ plan::Pass pass, RowCounts* counts) {
    const Counter counter{pass};
    const int64_t pulled = plan::pulled_row_bytes(pass.problem, pass.kind);
    const int64_t pushed = plan::bf16_row_bytes(pass.problem);
    counter.add(plan::TaskKind::DispatchX, true, pulled, counts->pulled);
    counter.add(plan::TaskKind::DispatchDY, true, pulled, counts->pulled);
    counter.add(plan::TaskKind::CombineY, false, pushed, counts->pushed);
    counter.add(plan::TaskKind::CombineDX, false, pushed, counts->pushed);
}

}  // namespace

cudaError_t launch_count_rows(const plan::Pass& pass, RowCounts* counts, cudaStream_t stream) {
    count_rows<<<kBlocks, kThreads, 0, stream>>>(pass, counts);
    return cudaGetLastError();
}

}  // namespace mok::kernels
