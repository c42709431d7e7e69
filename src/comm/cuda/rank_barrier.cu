#include <cuda/atomic>
#include <cuda/ptx>

#include "comm/cuda/rank_barrier_params.h"

namespace mok::comm {
namespace {

constexpr int kThreads = 96;  // whole warps, one thread per rank at least
static_assert(kThreads >= plan::kMaxRanks);

constexpr uint64_t kReportAfterNs = 1'000'000;
constexpr uint32_t kPollsPerLook = 64;  // at the clock and the device's word
constexpr uint32_t kLooksPerStop = 64;  // at the host's word, which is far away

using SystemWord = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;
using SystemEpoch = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;
using DeviceWord = cuda::atomic_ref<uint32_t, cuda::thread_scope_device>;

// The first thread that sets the device's word tells the host why.
__device__ void record(const RankBarrierParams& p, int late, uint64_t epoch, uint64_t waited_ns) {
    if (DeviceWord(*p.aborted).exchange(1, cuda::memory_order_relaxed) != 0) return;
    p.report->fault = {p.rank, late, epoch, waited_ns};
    // The host reads the fault after it has acquired this.
    SystemWord(p.report->has_fault).store(1, cuda::memory_order_release);
}

__device__ bool is_stopped(const RankBarrierParams& p, uint32_t look) {
    if (DeviceWord(*p.aborted).load(cuda::memory_order_relaxed) != 0) return true;
    if (look % kLooksPerStop != 0) return false;
    if (SystemWord(p.report->stop).load(cuda::memory_order_relaxed) == 0) return false;
    DeviceWord(*p.aborted).store(1, cuda::memory_order_relaxed);
    return true;
}

// Thread s waits until rank s has come. True: it has told the host that it waits.
__device__ bool wait_for(const RankBarrierParams& p, int s, uint64_t epoch) {
    const SystemEpoch arrived(p.flags[p.rank][s]);
    const uint64_t begin = cuda::ptx::get_sreg_globaltimer();
    bool is_reported = false;
    for (uint32_t polls = 1;; ++polls) {
        // Acquires what rank s released with its epoch. A rank may be a barrier ahead already.
        if (arrived.load(cuda::memory_order_acquire) >= epoch) return is_reported;
        if (polls % kPollsPerLook != 0) continue;
        if (is_stopped(p, polls / kPollsPerLook)) return is_reported;
        const uint64_t waited = cuda::ptx::get_sreg_globaltimer() - begin;
        if (waited > kReportAfterNs && !is_reported) {
            SystemWord(reinterpret_cast<uint32_t&>(p.report->late_rank))
                .store(s, cuda::memory_order_relaxed);
            SystemWord(p.report->is_waiting).store(1, cuda::memory_order_release);
            is_reported = true;
        }
        if (waited > p.timeout_ns) {
            record(p, s, epoch, waited);
            return is_reported;
        }
    }
}

// One block, thread s for rank s. What earlier kernels of this stream wrote happens before the
// release to each peer, for a kernel starts after they have ended; what a peer released happens
// before its acquire here, and that before every later kernel of this stream.
__global__ void __launch_bounds__(kThreads)
    rank_barrier(const __grid_constant__ RankBarrierParams p) {
    // Every thread reads the epoch before one of them counts on.
    const uint64_t epoch = *p.epoch + 1;
    const bool has_failed = DeviceWord(*p.aborted).load(cuda::memory_order_relaxed) != 0;
    // A rank that has failed comes to no barrier: its peers find it late, or hear of it.
    if (__syncthreads_or(has_failed)) return;
    const int s = static_cast<int>(threadIdx.x);
    if (s == 0) *p.epoch = epoch;
    bool is_reported = false;
    if (s < p.num_ranks) {
        SystemEpoch(p.flags[s][p.rank]).store(epoch, cuda::memory_order_release);
        is_reported = wait_for(p, s, epoch);
    }
    if (__syncthreads_or(is_reported) && s == 0) {
        SystemWord(p.report->is_waiting).store(0, cuda::memory_order_relaxed);
    }
}

}  // namespace

cudaError_t load_rank_barrier() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, rank_barrier);
}

cudaError_t launch_rank_barrier(const RankBarrierParams& params, cudaStream_t stream) {
    rank_barrier<<<1, kThreads, 0, stream>>>(params);
    return cudaGetLastError();
}

}  // namespace mok::comm
