#include "cli/train/rank_threads.h"

#include <thread>

#include "openmok/error.h"

namespace mok::train {

RankThreads::RankThreads(int num_ranks) : groups_(Group::in_process(num_ranks)) {}

void RankThreads::run(const std::function<void(const Group&)>& body) {
    {
        std::vector<std::jthread> threads;
        for (const Group& group : groups_) {
            threads.emplace_back([this, &group, &body] {
                try {
                    body(group);
                } catch (const std::exception& error) {
                    fail(group, error.what());
                }
            });
        }
    }
    if (first_error_) std::rethrow_exception(first_error_);
}

void RankThreads::meet() {
    std::unique_lock lock(mutex_);
    const uint64_t meeting = meetings_;
    if (++num_waiting_ == size()) {
        num_waiting_ = 0;
        ++meetings_;
        arrived_.notify_all();
        return;
    }
    arrived_.wait(lock, [&] { return meetings_ != meeting || first_error_; });
    if (meetings_ == meeting) throw Error("another rank has failed");
}

void RankThreads::fail(const Group& group, const char* why) {
    {
        const std::lock_guard lock(mutex_);
        if (!first_error_) first_error_ = std::current_exception();
    }
    arrived_.notify_all();
    group.abandon(why);
}

}  // namespace mok::train
