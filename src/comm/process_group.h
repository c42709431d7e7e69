#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/local_rank.h"
#include "comm/net/hub.h"

namespace mok::comm {

// Ranks as processes, of one host or several: rank 0 holds the hub, every rank talks to it. One
// thread of a process at a time makes the collective calls; break_group, throw_if_broken and broken
// are for any thread. A rank that dies, or that a host loses, breaks the group for all at once.
class ProcessGroup final : public GroupState {
  public:
    // Joins the group and returns when every rank has. Throws TimeoutError where a rank does not
    // come within the timeout, and Error where this one is refused or rank 0 cannot listen.
    // Rank 0 listens with `listener` if it has a descriptor, else at the place's port.
    ProcessGroup(const LocalRank& place, GroupOptions options, Descriptor listener = {});
    // Leaves in peace, within about a second.
    ~ProcessGroup() override = default;

    bool is_one_process() const override { return size() == 1; }
    int local_rank(int) const override { return place_.local_rank; }
    void barrier(int rank, const char* what) override { exchange_bytes(rank, {}, what); }
    std::vector<Bytes> exchange_bytes(int rank, std::span<const std::byte> mine,
                                      const char* what) override;
    void break_group(const std::string& why, int peer) override;
    void throw_if_broken(int rank) override;
    bool broken() override;

  private:
    Connection reach_hub() const;
    void join_hub(Connection& hub, std::chrono::steady_clock::time_point deadline) const;
    void serve(const std::stop_token& stopped);
    bool transfer();
    void receive(const Message& message);
    void say_farewell();
    void break_locked(const std::string& why, int peer);
    [[noreturn]] void throw_broken() const { throw TimeoutError(why_, place_.rank, broken_peer_); }

    LocalRank place_;
    std::unique_ptr<Hub> hub_;  // in rank 0

    std::mutex mutex_;  // of everything below but the thread
    std::condition_variable changed_;
    std::optional<Connection> connection_;
    bool hub_has_left_ = false;
    uint64_t number_ = 0;  // of the next collective
    std::string what_;     // the collective that this rank is in
    std::optional<std::vector<Bytes>> gathered_;
    bool broken_ = false;
    std::string why_;
    int broken_peer_ = -1;

    WakeUp wake_;
    std::jthread thread_;  // sends and receives; the last member: it ends before what it uses
};

}  // namespace mok::comm
