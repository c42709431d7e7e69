#include <cstdlib>

#include "comm/in_process_group.h"
#include "comm/local_rank.h"
#include "comm/process_group.h"
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
    const auto state = std::make_shared<comm::InProcessGroup>(num_ranks, options);
    std::vector<Group> ranks;
    for (int r = 0; r < num_ranks; ++r) ranks.push_back(Group(state, r));
    return ranks;
}

Group Group::self(GroupOptions options) {
    return in_process(1, options).front();
}

Group Group::from_environment(GroupOptions options) {
    const auto place = comm::find_local_rank(comm::process_environment());
    if (!place) {
        throw ShapeError(
            "no launcher: expected RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT "
            "(torchrun), OMPI_COMM_WORLD_RANK or PMI_RANK (mpirun), or SLURM_PROCID (srun); found "
            "none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID of a step");
    }
    if (place->size == 1) return self(options);
    return Group(std::make_shared<comm::ProcessGroup>(*place, options), place->rank);
}

Group Group::connect(const MeetingPoint& point, const Seat& seat, GroupOptions options) {
    const comm::LocalRank place{seat.rank,    seat.size,    seat.local_rank,
                                point.host(), point.port(), seat.job};
    comm::check_place(place, "the group's");
    if (place.size == 1) return self(options);
    return Group(std::make_shared<comm::ProcessGroup>(place, options, point.take_listener()),
                 place.rank);
}

MeetingPoint::MeetingPoint(std::string host, int port) : host_(std::move(host)), port_(port) {
    comm::check_port("the meeting point's port", port);
}

MeetingPoint MeetingPoint::listen(const std::string& host) {
    auto listener = std::make_shared<comm::Descriptor>(comm::listen_at(host, 0));
    MeetingPoint point(host, comm::port_of(*listener));
    point.listener_ = std::move(listener);
    return point;
}

comm::Descriptor MeetingPoint::take_listener() const {
    return listener_ == nullptr ? comm::Descriptor() : std::move(*listener_);
}

int Group::size() const {
    return state_->size();
}

int Group::local_rank() const {
    return state_->local_rank(rank_);
}

void Group::abandon(const char* why) const {
    state_->break_group("rank " + std::to_string(rank_) + " gave up: " + why, rank_);
}

}  // namespace mok
