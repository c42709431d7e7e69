#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "openmok/device.h"

namespace mok {

namespace comm {
class GroupState;
}

struct GroupOptions {
    // A rank that has not come after this long breaks the group. Above 0 and at most 1e6 s,
    // otherwise ShapeError where the group is made. MOK_TIMEOUT_S overrides the default.
    std::chrono::duration<double> timeout = default_timeout();
    // A warning on stderr names the rank that is late after this long (0 s or more).
    std::chrono::duration<double> warn_after = std::chrono::seconds(30);

    static std::chrono::duration<double> default_timeout();
};

// One rank's membership in a group of ranks that run a layer together. Copies share the group.
// Every call that is marked collective must be made by every rank of the group, in the same order.
class Group {
  public:
    // A group of this process alone.
    static Group self(GroupOptions options = {});
    // R ranks as threads of this process; element r belongs to rank r and is used by one thread at
    // a time. 1 <= R <= 72, otherwise ShapeError.
    static std::vector<Group> in_process(int num_ranks, GroupOptions options = {});
    // This process's rank in a group of processes that torchrun, srun or mpirun has started
    // (docs/design.md section 11 has their variables). Returns when every rank has come;
    // TimeoutError names one that has not. ShapeError: no launcher, or variables that are
    // incomplete or contradict each other.
    static Group from_environment(GroupOptions options = {});

    // R virtual ranks that share one GPU, each used by a thread of its own; one rank is the usual
    // way to use one GPU. Throws Error where the device cannot be used (why_no_cuda).
    static std::vector<Group> cuda_virtual(int num_ranks, int device, GroupOptions options = {});
    // from_environment with a GPU for each rank: that of its local rank, or the only one that its
    // process can see. Collective, and throws the same Error on every rank, before anything is
    // launched, where a rank has no GPU for the backend, two ranks have the same one or cannot
    // access each other's, or NCCL is missing or not that of the build. A workspace of such a group
    // is made and destroyed at the same place in the order of calls on every rank; one that an
    // exception destroys breaks the group.
    static Group cuda_from_environment(GroupOptions options = {});

    int rank() const { return rank_; }
    int size() const;
    // This rank's number among those of its host.
    int local_rank() const;
    Device device() const { return device_; }

    // Declares this rank dead: the others' pending and later calls end at once with a sentence that
    // names it. For a caller that fails between two collective calls.
    void abandon(const char* why) const;

    comm::GroupState& state() const { return *state_; }

  private:
    Group(std::shared_ptr<comm::GroupState> state, int rank)
        : state_(std::move(state)), rank_(rank) {}
    std::shared_ptr<comm::GroupState> state_;
    int rank_;
    Device device_;
};

}  // namespace mok
