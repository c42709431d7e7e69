#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "openmok/device.h"

namespace mok {

namespace comm {
class GroupState;
class Descriptor;
}  // namespace comm

struct GroupOptions {
    // A rank that has not come after this long breaks the group. Above 0 and at most 1e6 s,
    // otherwise ShapeError where the group is made. MOK_TIMEOUT_S overrides the default.
    std::chrono::duration<double> timeout = default_timeout();
    // A warning on stderr names the rank that is late after this long (0 s or more).
    std::chrono::duration<double> warn_after = std::chrono::seconds(30);

    static std::chrono::duration<double> default_timeout();
};

// Where the ranks of a group of processes meet that no launcher's variables describe: rank 0
// listens there, and the caller tells the others host and port.
class MeetingPoint {
  public:
    // Rank 0's, at a free port of `host`: the name or address by which the others reach this
    // machine; localhost where all are on it. Throws Error where nothing can listen there.
    static MeetingPoint listen(const std::string& host);
    // The others': what rank 0's says.
    MeetingPoint(std::string host, int port);

    const std::string& host() const { return host_; }
    int port() const { return port_; }
    // Rank 0's listener, which the group takes; the second time, and elsewhere: none.
    comm::Descriptor take_listener() const;

  private:
    std::string host_;
    int port_ = 0;
    std::shared_ptr<comm::Descriptor> listener_;
};

// Who a process is in such a group.
struct Seat {
    int rank = 0;
    int size = 1;
    int local_rank = 0;  // among the ranks of this host
    std::string job;     // equal on all ranks: nobody of another job joins
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

    // The same for the ranks that the caller brings together. Any number of groups may be made,
    // with other ranks or the same ones.
    static Group connect(const MeetingPoint& point, const Seat& seat, GroupOptions options = {});

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
    // connect with a GPU for each rank, this one's being `device`. The rest as above.
    static Group cuda_connect(const MeetingPoint& point, const Seat& seat, int device,
                              GroupOptions options = {});

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
    // Gives a group of processes its GPUs; `why_not`: this rank has none. Collective.
    static Group on_gpus(Group group, int device, std::string why_not);

    std::shared_ptr<comm::GroupState> state_;
    int rank_;
    Device device_;
};

}  // namespace mok
