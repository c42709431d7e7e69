#pragma once

#include "kernels/exchange.cuh"

// What the forward's exchange pulls: x in BF16.
namespace mok::kernels {

__device__ inline auto mover_of(const ForwardParams& p, SharedMemory& smem) {
    return RowStream<ForwardParams>(p, smem);
}
// The exchange's buffer and the staging before it: no result of a forward in BF16 goes through
// that.
__device__ inline ExchangeRoom own_room_of(const ForwardParams& /*p*/, SharedMemory& smem) {
    static_assert(offsetof(SharedMemory, exchange) ==
                  offsetof(SharedMemory, staging) + sizeof(SharedMemory::staging));
    return {smem.staging[0], sizeof(smem.staging) + sizeof(smem.exchange), false};
}
__device__ inline int32_t pulled_bytes(const ForwardParams& p) {
    return p.pass.problem.hidden * 2;
}
__device__ inline const uint8_t* pulled_source(const ForwardParams& p, plan::TaskKind /*DispatchX*/,
                                               const LaneRow& row) {
    const plan::Problem& problem = p.pass.problem;
    return reinterpret_cast<const uint8_t*>(p.peer_x[row.home] +
                                            int64_t{row.route / problem.top_k} * problem.hidden);
}
__device__ inline uint8_t* pulled_place(const ForwardParams& p, plan::TaskKind /*DispatchX*/,
                                        int32_t slot) {
    const plan::Problem& problem = p.pass.problem;
    return reinterpret_cast<uint8_t*>(p.ring_x +
                                      int64_t{plan::ring_row(problem, slot)} * problem.hidden);
}
__device__ inline void put_beside(const ForwardParams& /*p*/, const CommClaim& /*at*/) {}

}  // namespace mok::kernels
