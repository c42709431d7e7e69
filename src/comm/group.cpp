#include <cmath>
#include <cstdlib>

#include "comm/in_process_group.h"
#include "openmok/error.h"
#include "plan/problem.h"

namespace mok {

std::chrono::duration<double> GroupOptions::default_timeout() {
    if (const char* text = std::getenv("MOK_TIMEOUT_S")) {
        char* end = nullptr;
        const double seconds = std::strtod(text, &end);
        if (end == text || *end != '\0' || !(seconds > 0) || std::isinf(seconds)) {
            throw ShapeError("MOK_TIMEOUT_S: expected a positive number of seconds, found '" +
                             std::string(text) + "'");
        }
        return std::chrono::duration<double>(seconds);
    }
    return std::chrono::seconds(600);
}

std::vector<Group> Group::in_process(int num_ranks, GroupOptions options) {
    if (num_ranks < 1 || num_ranks > plan::kMaxRanks) {
        throw ShapeError("ranks: expected 1 to " + std::to_string(plan::kMaxRanks) + ", found " +
                         std::to_string(num_ranks));
    }
    const auto state = std::make_shared<comm::InProcessGroup>(num_ranks, options);
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

}  // namespace mok
