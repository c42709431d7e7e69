#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "comm/group_state.h"

namespace mok::comm {

// Ranks as threads of this process.
class InProcessGroup final : public GroupState {
  public:
    InProcessGroup(int num_ranks, GroupOptions options);

    bool is_one_process() const override { return true; }
    int local_rank(int rank) const override { return rank; }
    void barrier(int rank, const char* what) override;
    std::vector<Bytes> exchange_bytes(int rank, std::span<const std::byte> mine,
                                      const char* what) override;
    void break_group(const std::string& why, int peer) override;
    void throw_if_broken(int rank) override;
    bool broken() override;

  private:
    int late_rank(int rank, uint64_t epoch) const;
    [[noreturn]] void throw_broken(int rank) const;

    std::vector<std::span<const std::byte>> exchanged_;  // written by a rank between two barriers
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<uint64_t> epochs_;
    bool broken_ = false;
    std::string why_;
    int broken_peer_ = -1;
};

}  // namespace mok::comm
