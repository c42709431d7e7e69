#include "comm/in_process_group.h"

#include <chrono>
#include <cstdio>

#include "openmok/error.h"

namespace mok::comm {

InProcessGroup::InProcessGroup(int num_ranks, GroupOptions options)
    : GroupState(num_ranks, options), exchanged_(num_ranks), epochs_(num_ranks) {}

int InProcessGroup::late_rank(int rank, uint64_t epoch) const {
    for (int r = 0; r < size(); ++r) {
        if (r != rank && epochs_[r] < epoch) return r;
    }
    return -1;
}

void InProcessGroup::throw_broken(int rank) const {
    throw TimeoutError(why_, rank, broken_peer_);
}

void InProcessGroup::throw_if_broken(int rank) {
    std::lock_guard lock(mutex_);
    if (broken_) throw_broken(rank);
}

bool InProcessGroup::broken() {
    std::lock_guard lock(mutex_);
    return broken_;
}

void InProcessGroup::break_group(const std::string& why, int peer) {
    {
        std::lock_guard lock(mutex_);
        if (broken_) return;
        broken_ = true;
        why_ = why;
        broken_peer_ = peer;
    }
    changed_.notify_all();
}

void InProcessGroup::barrier(int rank, const char* what) {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(mutex_);
    if (broken_) throw_broken(rank);
    const uint64_t epoch = ++epochs_[rank];
    changed_.notify_all();
    const auto start = Clock::now();
    const auto bound = start + std::chrono::duration_cast<Clock::duration>(options().timeout);
    auto warning = start + std::chrono::duration_cast<Clock::duration>(options().warn_after);
    const auto done = [&] { return broken_ || late_rank(rank, epoch) < 0; };
    while (!done()) {
        const auto now = Clock::now();
        const int late = late_rank(rank, epoch);
        const double waited = std::chrono::duration<double>(now - start).count();
        char text[256];
        if (now >= bound) {
            std::snprintf(text, sizeof(text),
                          "rank %d waited %.1f s at the %s and rank %d did not come; the group is "
                          "broken",
                          rank, waited, what, late);
            broken_ = true;
            why_ = text;
            broken_peer_ = late;
            changed_.notify_all();
            break;
        }
        if (now >= warning) {
            std::fprintf(stderr, "mok: rank %d has waited %.0f s at the %s for rank %d\n", rank,
                         waited, what, late);
            warning = bound;
        }
        changed_.wait_until(lock, now < warning && warning < bound ? warning : bound, done);
    }
    if (broken_) throw_broken(rank);
}

std::vector<Bytes> InProcessGroup::exchange_bytes(int rank, std::span<const std::byte> mine,
                                                  const char* what) {
    exchanged_[rank] = mine;
    barrier(rank, what);
    std::vector<Bytes> all;
    for (const auto& of_rank : exchanged_) all.emplace_back(of_rank.begin(), of_rank.end());
    barrier(rank, what);
    return all;
}

}  // namespace mok::comm
