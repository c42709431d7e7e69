#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "comm/wait_bound.h"
#include "openmok/error.h"
#include "openmok/group.h"

namespace mok::comm {

using Bytes = std::vector<std::byte>;

// What the ranks of a group share: threads of one process (in_process_group.h) or processes
// (process_group.h). `rank` is always the caller's own. Every wait is bounded by the group's
// timeout: when it expires, or a rank is declared dead, the group is broken and stays so.
class GroupState {
  public:
    // Refuses options that no clock can hold (wait_bound.h).
    GroupState(int num_ranks, GroupOptions options)
        : size_(num_ranks), options_(checked(options)) {}
    virtual ~GroupState() = default;
    GroupState(const GroupState&) = delete;
    GroupState& operator=(const GroupState&) = delete;

    int size() const { return size_; }
    const GroupOptions& options() const { return options_; }
    // Whether a pointer of one rank means the same to all.
    virtual bool is_one_process() const = 0;
    // The rank's number among those of its host.
    virtual int local_rank(int rank) const = 0;

    // Returns when every rank has entered the barrier as often as this one. Memory written by a
    // rank before it enters is visible to every rank that leaves and can address it. `what` names
    // the barrier in sentences. Throws TimeoutError that names the missing rank.
    virtual void barrier(int rank, const char* what) = 0;

    // Every rank contributes some bytes, at most kMaxExchangeBytes, and gets those of all ranks in
    // the order of ranks. Waits and throws as barrier does.
    virtual std::vector<Bytes> exchange_bytes(int rank, std::span<const std::byte> mine,
                                              const char* what) = 0;

    // Breaks the group with a sentence. The first sentence stays.
    virtual void break_group(const std::string& why, int peer) = 0;
    virtual void throw_if_broken(int rank) = 0;
    virtual bool broken() = 0;

    // Ranks of one process only, otherwise Error: every rank contributes a pointer and gets those
    // of all ranks; the pointees are valid while `use` runs. Ends with a barrier after `use`.
    template <class Use>
    void exchange(int rank, const void* mine, const char* what, Use&& use) {
        if (!is_one_process()) {
            throw Error(std::string(what) + ": expected ranks of one process, found processes");
        }
        std::vector<const void*> all;
        for (const Bytes& of_rank :
             exchange_bytes(rank, std::as_bytes(std::span(&mine, 1)), what)) {
            std::memcpy(&all.emplace_back(), of_rank.data(), sizeof(void*));
        }
        use(all);
        barrier(rank, what);
    }

  private:
    int size_;
    GroupOptions options_;
};

inline constexpr std::size_t kMaxExchangeBytes = std::size_t{1} << 20;

}  // namespace mok::comm
