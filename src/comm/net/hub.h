#pragma once

#include <chrono>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "comm/net/connection.h"

namespace mok::comm {

// Who may join: the ranks below `size` that belong to `job`.
struct Membership {
    int size;
    std::string job;
};

// The middle of a group of processes: a thread in rank 0's process to which every rank is
// connected. It hands out what the ranks contribute once all have, keeps the bound of every rank
// that waits, and tells all of them at once when one is lost. Strangers are turned away and delay
// nobody.
class Hub {
  public:
    // Rank 0 is a member from the start, over its own end of a pair.
    Hub(Descriptor listener, Descriptor rank_0, Membership membership);
    // Tells every rank that rank 0 leaves, and ends within about a second.
    ~Hub() = default;
    Hub(const Hub&) = delete;
    Hub& operator=(const Hub&) = delete;

  private:
    using Clock = std::chrono::steady_clock;

    struct Link {
        Connection connection;
        Clock::time_point since;  // when it was accepted
        int rank = -1;            // -1: has not said who it is
        bool is_closing = false;  // closed once what it is sent has gone
    };
    struct Member {
        Link* link = nullptr;
        bool has_joined = false, has_left = false;
        // Of the collective that is under way:
        bool has_arrived = false, was_warned = false;
        Clock::time_point arrived_at;
        Clock::duration timeout, warn_after;
        Bytes contribution;
    };

    void run();
    int poll_timeout_ms() const;
    void accept_links();
    bool serve(Link& link);  // false: the link is to be dropped
    bool receive(Link& link, const Message& message);
    bool admit(Link& link, const Message& hello);
    void arrive(Member& member, int rank, const Message& arrival);
    void lose(const Link& link, const char* how);
    void break_all(const std::string& why, int peer, const Link* except = nullptr);
    void settle();
    void finish_collective();
    void check_bounds();
    void say_farewell();
    int missing_rank() const;
    int waiting_rank() const;

    Descriptor listener_;
    Membership membership_;
    std::vector<Member> members_;
    std::list<Link> links_;
    uint64_t number_ = 0;  // of the collective under way
    std::string what_;     // its name
    bool is_broken_ = false;
    std::string why_;
    WakeUp wake_;
    std::jthread thread_;  // the last member: it ends before what it uses
};

}  // namespace mok::comm
