#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/cuda/nccl_memory.h"
#include "comm/cuda/rank_barrier.h"
#include "comm/group_state.h"
#include "layer/cuda_memory.h"
#include "layer/cuda_peers.h"
#include "layer/cuda_unended.h"

namespace mok::layer {
namespace {

using Clock = std::chrono::steady_clock;

class ProcessPeers final : public CudaPeers {
  public:
    ProcessPeers(const Group& group, const plan::WindowMap& map)
        : group_(group), memory_(comm::make_nccl_memory(group, map.total)) {
        std::string sentence;
        try {
            make_barrier(map.barrier_flags);
        } catch (const Error& e) {
            sentence = "rank " + std::to_string(group_.rank()) + ": " + e.what();
        }
        comm::agree(group_, sentence, "setting up of the rank barrier");
    }

    ~ProcessPeers() override {
        // The end of the windows is collective, and a rank that an exception ends does not come to
        // what the others wait for.
        if (std::uncaught_exceptions() > num_exceptions_) {
            group_.abandon("an error ended its workspace");
        }
        const DeviceScope current(group_.device().index);
        if (has_unended_kernels()) {
            static_cast<void>(barrier_.release());
            static_cast<void>(memory_.release());
        }
        barrier_.reset();
        memory_.reset();
    }

    std::byte* window(int rank) const override { return memory_->base(rank); }
    bool is_capturable() const override { return true; }
    // A graph repeats meetings that the host does not count, so no sentence says which one it was.
    void meet(cudaStream_t stream, const char*) override { barrier_->enqueue(stream); }

    std::function<void()> attendant() override {
        return [this, late_since = std::optional<Clock::time_point>(),
                was_warned = false]() mutable {
            stop_if_broken();
            const Clock::time_point now = Clock::now();
            const std::optional<int> late = barrier_->late_rank();
            if (!late) late_since.reset();
            if (late && !late_since) late_since = now;
            if (late && !was_warned && now - *late_since > group_.state().options().warn_after) {
                warn(*late, now - *late_since);
                was_warned = true;
            }
        };
    }

    void throw_if_broken() override {
        if (const auto fault = barrier_->fault()) {
            group_.state().break_group(comm::sentence(*fault, "rank barrier"), fault->late_rank);
        }
        group_.state().throw_if_broken(group_.rank());
    }

    void stop_if_broken() override {
        if (group_.state().broken()) barrier_->stop();
    }

  private:
    void make_barrier(int64_t flags_offset) {
        // Set for good by a barrier that has failed; apart from what a pass or poison clears.
        aborted_ = std::make_shared<DevicePool>(group_.device().index)
                       ->take(sizeof(uint32_t), "word of the rank barrier");
        check_cuda(cudaMemset(aborted_.data(), 0, sizeof(uint32_t)), "clearing a word");
        std::vector<uint64_t*> flags;
        for (int r = 0; r < group_.size(); ++r) {
            flags.push_back(reinterpret_cast<uint64_t*>(memory_->base(r) + flags_offset));
        }
        barrier_ = std::make_unique<comm::RankBarrier>(
            group_.rank(), flags, aborted_.at<uint32_t>(0), group_.state().options().timeout);
    }

    void warn(int late, std::chrono::duration<double> waited) const {
        std::fprintf(stderr, "mok: rank %d has waited %.0f s at the rank barrier for rank %d\n",
                     group_.rank(), waited.count(), late);
    }

    Group group_;
    int num_exceptions_ = std::uncaught_exceptions();
    std::unique_ptr<comm::PeerMemory> memory_;
    Memory aborted_;
    std::unique_ptr<comm::RankBarrier> barrier_;
};

}  // namespace

std::unique_ptr<CudaPeers> make_process_peers(const Group& group, const plan::WindowMap& map) {
    return std::make_unique<ProcessPeers>(group, map);
}

}  // namespace mok::layer
