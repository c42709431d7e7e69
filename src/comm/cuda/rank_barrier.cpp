#include "comm/cuda/rank_barrier.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "comm/cuda/runtime.h"

namespace mok::comm {

RankBarrier::RankBarrier(int rank, const std::vector<uint64_t*>& flags, uint32_t* aborted,
                         std::chrono::duration<double> timeout) {
    demand_cuda(load_rank_barrier(), "loading the rank barrier");
    void* report = nullptr;
    demand_cuda(cudaHostAlloc(&report, sizeof(RankBarrierReport),
                              cudaHostAllocMapped | cudaHostAllocPortable),
                "allocating a barrier's report");
    report_ = new (report) RankBarrierReport{};
    demand_cuda(cudaMalloc(reinterpret_cast<void**>(&epoch_), sizeof(uint64_t)),
                "allocating a barrier's epoch");
    demand_cuda(cudaMemset(epoch_, 0, sizeof(uint64_t)), "clearing a barrier's epoch");
    demand_cuda(cudaDeviceSynchronize(), "clearing a barrier's epoch");
    params_.rank = rank;
    params_.num_ranks = static_cast<int32_t>(flags.size());
    std::ranges::copy(flags, params_.flags);
    params_.epoch = epoch_;
    params_.aborted = aborted;
    params_.report = report_;
    params_.timeout_ns = static_cast<uint64_t>(timeout.count() * 1e9);
}

RankBarrier::~RankBarrier() {
    cudaFree(epoch_);
    cudaFreeHost(report_);
}

void RankBarrier::enqueue(cudaStream_t stream) {
    demand_cuda(launch_rank_barrier(params_, stream), "launching a rank barrier");
}

std::optional<int> RankBarrier::late_rank() const {
    if (std::atomic_ref(report_->is_waiting).load(std::memory_order_acquire) == 0) return {};
    return std::atomic_ref(report_->late_rank).load(std::memory_order_relaxed);
}

std::optional<RankBarrierFault> RankBarrier::fault() const {
    if (std::atomic_ref(report_->has_fault).load(std::memory_order_acquire) == 0) return {};
    return report_->fault;
}

void RankBarrier::stop() {
    std::atomic_ref(report_->stop).store(1, std::memory_order_relaxed);
}

std::string sentence(const RankBarrierFault& fault, const char* what) {
    char text[256];
    std::snprintf(text, sizeof(text),
                  "rank %d waited %.1f s at the %s and rank %d did not come; the group is broken",
                  fault.rank, static_cast<double>(fault.waited_ns) * 1e-9, what, fault.late_rank);
    return text;
}

}  // namespace mok::comm
