#pragma once

#include "arch/barrier.cuh"

// Clusters: CTAs that run at the same time and reach each other's shared memory. Every CTA has the
// same layout there, so an object of another CTA is named by this CTA's own and a rank.
namespace mok::arch {

struct Cluster {
    uint32_t rank, size;  // of this CTA; CTAs
};
__device__ inline Cluster this_cluster() {
    return {ptx::get_sreg_cluster_ctarank(), ptx::get_sreg_cluster_nctarank()};
}

// All threads of the cluster: what each wrote before is visible to all after.
__device__ inline void cluster_sync() {
    ptx::barrier_cluster_arrive(ptx::sem_release);
    ptx::barrier_cluster_wait(ptx::sem_acquire);
}

// Address in the cluster of an object in the shared memory of the CTA of that rank.
__device__ inline uint32_t cluster_address(const void* own, uint32_t rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(own)), "r"(rank));
    return address;
}

// An arrival at a barrier anywhere in the cluster. It orders what this thread has seen finished
// (products, copies that a barrier told), not ordinary writes: these would need a fence.
__device__ inline void cluster_arrive(uint32_t barrier_address) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_address) : "memory");
}

// The same behind what this thread has read: whoever sees the arrival may overwrite it.
__device__ inline void cluster_arrive_after_reads(uint32_t barrier_address) {
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier_address)
        : "memory");
}

// A word into shared memory anywhere in the cluster; its 4 bytes count at a barrier of the same
// CTA, whose waiters then see it.
__device__ inline void cluster_store(uint32_t address, uint32_t value, uint32_t barrier_address) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
            address),
        "r"(value), "r"(barrier_address)
        : "memory");
}

}  // namespace mok::arch
