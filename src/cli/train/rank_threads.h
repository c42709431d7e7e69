#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "openmok/group.h"

namespace mok::train {

// R ranks as threads of this process. When one of them throws, the others end as well: those in a
// call of the layer because the group is abandoned, those in meet() because it throws.
class RankThreads {
  public:
    explicit RankThreads(int num_ranks);

    // Calls body(group) once a rank, each in a thread of its own, and waits for all. Then throws
    // what the first rank to fail threw.
    void run(const std::function<void(const Group&)>& body);

    // Rank barrier: returns when every rank's thread has called it; what any of them wrote before
    // is then visible to all (mutex_ is passed from each to each).
    void meet();

    int size() const { return static_cast<int>(groups_.size()); }

  private:
    void fail(const Group& group, const char* why);

    std::vector<Group> groups_;
    std::mutex mutex_;
    std::condition_variable arrived_;
    int num_waiting_ = 0;
    uint64_t meetings_ = 0;
    std::exception_ptr first_error_;
};

}  // namespace mok::train
