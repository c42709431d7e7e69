#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "openmok/group.h"

namespace mok::comm {

// What the ranks of an in-process group share. Every wait in it is bounded: when the bound expires,
// or a rank is declared dead, the group is broken and stays so.
class GroupState {
  public:
    // The options are checked ones (wait_bound.h).
    GroupState(int num_ranks, GroupOptions options);

    int size() const { return static_cast<int>(epochs_.size()); }
    const GroupOptions& options() const { return options_; }

    // Returns when every rank has entered the barrier as often as this one. Memory written by a
    // rank before it enters is visible to every rank that leaves. `what` names the barrier in
    // sentences. Throws TimeoutError that names the missing rank.
    void barrier(int rank, const char* what);

    // Every rank contributes a pointer and gets those of all ranks; the pointees are valid while
    // the call runs on any rank. Ends with a barrier after `use`.
    template <class Use>
    void exchange(int rank, const void* mine, const char* what, Use&& use) {
        exchanged_[rank] = mine;
        barrier(rank, what);
        use(exchanged_);
        barrier(rank, what);
    }

    // Breaks the group with a sentence. The first sentence stays.
    void break_group(const std::string& why, int peer);
    void throw_if_broken(int rank);
    bool broken();

  private:
    int late_rank(int rank, uint64_t epoch) const;
    [[noreturn]] void throw_broken(int rank) const;

    GroupOptions options_;
    std::vector<const void*> exchanged_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<uint64_t> epochs_;
    bool broken_ = false;
    std::string why_;
    int broken_peer_ = -1;
};

}  // namespace mok::comm
