#include "comm/group_state.h"

#include <cstdio>
#include <cstdlib>

#include "comm/wait_bound.h"
#include "openmok/error.h"
#include "plan/problem.h"

namespace mok {

std::chrono::duration<double> GroupOptions::default_timeout() {
    if (const char* text = std::getenv("MOK_TIMEOUT_S")) {
        return comm::wait_bound("MOK_TIMEOUT_S", text);
    }
    return std::chrono::seconds(600);
}

std::vector<Group> Group::in_process(int num_ranks, GroupOptions options) {
    if (num_ranks < 1 || num_ranks > plan::kMaxRanks) {
        throw ShapeError("ranks: expected 1 to " + std::to_string(plan::kMaxRanks) + ", found " +
                         std::to_string(num_ranks));
    }
    const auto state = std::make_shared<comm::GroupState>(num_ranks, comm::checked(options));
    std::vector<Group> ranks;
    for (int r = 0; r < num_ranks; ++r) ranks.push_back(Group(state, r));
    return ranks;
}

Group Group::self(GroupOptions options) {
    return in_process(1, options).front();
}

int Group::size() const {
    return state_->size();
}

void Group::abandon(const char* why) const {
    state_->break_group("rank " + std::to_string(rank_) + " gave up: " + why, rank_);
}

namespace comm {

GroupState::GroupState(int num_ranks, GroupOptions options)
    : options_(options), exchanged_(num_ranks), epochs_(num_ranks) {}

int GroupState::late_rank(int rank, uint64_t epoch) const {
    for (int r = 0; r < size(); ++r) {
        if (r != rank && epochs_[r] < epoch) return r;
    }
    return -1;
}

void GroupState::throw_broken(int rank) const {
    throw TimeoutError(why_, rank, broken_peer_);
}

void GroupState::throw_if_broken(int rank) {
    std::lock_guard lock(mutex_);
    if (broken_) throw_broken(rank);
}

bool GroupState::broken() {
    std::lock_guard lock(mutex_);
    return broken_;
}

void GroupState::break_group(const std::string& why, int peer) {
    {
        std::lock_guard lock(mutex_);
        if (broken_) return;
        broken_ = true;
        why_ = why;
        broken_peer_ = peer;
    }
    changed_.notify_all();
}

void GroupState::barrier(int rank, const char* what) {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(mutex_);
    if (broken_) throw_broken(rank);
    const uint64_t epoch = ++epochs_[rank];
    changed_.notify_all();
    const auto start = Clock::now();
    const auto bound = start + std::chrono::duration_cast<Clock::duration>(options_.timeout);
    auto warning = start + std::chrono::duration_cast<Clock::duration>(options_.warn_after);
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

}  // namespace comm
}  // namespace mok
