#pragma once

#include "kernels/next_task.cuh"
#include "kernels/tensor_memory.cuh"

// What the kernels of sm_100a and sm_103a have in common. A CTA has Hopper's three warpgroups with
// their roles, and a fourth of which one warp takes the tensor memory and issues products.
namespace mok::kernels {

inline constexpr int kBlackwellThreads = kThreads + 128;
inline constexpr int kIssuerWarp = kThreads / 32;

// As RegisterSplit (layout.cuh).
template <int Movers, int Issuer, int Consumers>
struct BlackwellSplit {
    static constexpr int kMovers = Movers, kIssuer = Issuer, kConsumerThreads = Consumers;
    static_assert(128 * (Movers + Issuer + mok::kernels::kConsumers * Consumers) <= 65536,
                  "the registers of a multiprocessor");
};
using BlackwellForwardRegisters = BlackwellSplit<104, 56, 176>;
using BlackwellBackwardRegisters = BlackwellSplit<72, 56, 192>;

// Of a CTA, in shared memory behind the pass's own.
struct BlackwellState {
    LaunchControl launch;
    TensorMemory tensor;
};

// Called by the issuer's warp before the CTA's first barrier, and after its last.
__device__ inline void begin_tensor_memory(BlackwellState& state) {
    arch::take_tensor_memory(&state.tensor.address, arch::kTensorColumns);
}
__device__ inline void end_tensor_memory(BlackwellState& state) {
    arch::give_tensor_memory(state.tensor.address, arch::kTensorColumns);
}

// CTAs of a grid that may use max_sms multiprocessors: of a whole GPU enough for a CTA to end
// within a fraction of the pass, so that another kernel gets its multiprocessor (units.h); else one
// for each. A multiple of `cluster`. Throws nothing; the error is that of asking the device.
inline constexpr int kUnitsPerSm = 16;
inline cudaError_t blackwell_grid(int max_sms, int cluster, int& grid) {
    int device = 0, sms = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    grid = (max_sms < sms ? max_sms : max_sms * kUnitsPerSm) / cluster * cluster;
    return error;
}

}  // namespace mok::kernels
