#include "comm/process_group.h"

#include <poll.h>

#include <cstdio>
#include <stop_token>

namespace mok::comm {
namespace {

using Clock = std::chrono::steady_clock;

// The hub keeps the bounds; a rank counts it as lost when it is later than a bound by this much.
constexpr std::chrono::seconds kHubSlack{5};
constexpr std::size_t kMaxGatheredBody = std::size_t{80} << 20;

Clock::duration clock_duration(std::chrono::duration<double> d) {
    return std::chrono::duration_cast<Clock::duration>(d);
}
uint64_t nanoseconds(std::chrono::duration<double> d) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
}
double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

ProcessGroup::ProcessGroup(const LocalRank& place, GroupOptions options, Descriptor listener)
    : GroupState(place.size, options), place_(place) {
    if (place_.rank == 0) {
        auto [own, hubs] = connected_pair();
        if (listener.fd() < 0) listener = listen_at(place_.host, place_.port);
        hub_ = std::make_unique<Hub>(std::move(listener), std::move(hubs),
                                     Membership{place_.size, place_.job});
        connection_.emplace(std::move(own), kMaxGatheredBody);
    } else {
        connection_.emplace(reach_hub());
    }
    thread_ = std::jthread([this](const std::stop_token& stopped) { serve(stopped); });
    barrier(place_.rank, "rendezvous");
}

Connection ProcessGroup::reach_hub() const {
    const auto start = Clock::now();
    const auto deadline = start + clock_duration(options().timeout);
    std::string reason;
    Connection hub(connect_to(place_.host, place_.port, deadline, reason), kMaxGatheredBody);
    if (hub.fd() < 0) {
        char text[320];
        std::snprintf(text, sizeof(text),
                      "rank %d waited %.1f s for rank 0 at %s:%d and it did not come (%s)",
                      place_.rank, seconds_since(start), place_.host.c_str(), place_.port,
                      reason.c_str());
        throw TimeoutError(text, place_.rank, 0);
    }
    join_hub(hub, deadline);
    return hub;
}

// Says who this is and waits for the welcome.
void ProcessGroup::join_hub(Connection& hub, Clock::time_point deadline) const {
    const std::string who = "rank " + std::to_string(place_.rank) + ": ";
    const std::string where = place_.host + ":" + std::to_string(place_.port);
    hub.send(MessageKind::Hello,
             BodyWriter().u32(kProtocolVersion).i32(place_.rank).i32(place_.size).text(place_.job));
    while (true) {
        const bool is_open = hub.transfer();
        try {
            if (const auto reply = hub.next()) {
                if (reply->kind == MessageKind::Welcome) return;
                if (reply->kind != MessageKind::Refusal) throw BadMessage("no reply to a Hello");
                throw Error(who + "refused by rank 0 at " + where + ": " +
                            BodyReader(reply->body).text());
            }
        } catch (const BadMessage&) {
            throw Error(who + "what listens at " + where + " is no rank 0 of a group");
        }
        if (!is_open) {
            throw Error(who + "what listens at " + where +
                        " closed the connection; expected rank 0");
        }
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (left.count() <= 0) {
            throw TimeoutError(who + "what listens at " + where + " did not answer as rank 0 does",
                               place_.rank, 0);
        }
        pollfd polled{hub.fd(), hub.events(), 0};
        poll(&polled, 1, static_cast<int>(left.count()));
    }
}

std::vector<Bytes> ProcessGroup::exchange_bytes(int, std::span<const std::byte> mine,
                                                const char* what) {
    if (mine.size() > kMaxExchangeBytes) {
        throw Error(std::string(what) + ": expected at most " + std::to_string(kMaxExchangeBytes) +
                    " bytes of a rank, found " + std::to_string(mine.size()));
    }
    std::unique_lock lock(mutex_);
    if (broken_) throw_broken();
    what_ = what;
    connection_->send(MessageKind::Arrival, BodyWriter()
                                                .u64(number_)
                                                .u64(nanoseconds(options().timeout))
                                                .u64(nanoseconds(options().warn_after))
                                                .text(what)
                                                .blob(mine));
    wake_.wake();
    const auto start = Clock::now();
    const auto bound = start + clock_duration(options().timeout) + kHubSlack;
    changed_.wait_until(lock, bound, [this] { return broken_ || gathered_ || hub_has_left_; });
    if (gathered_) {
        ++number_;
        std::vector<Bytes> all = std::move(*gathered_);
        gathered_.reset();
        return all;
    }
    const std::string who = "rank " + std::to_string(place_.rank);
    if (hub_has_left_) {
        break_locked("rank 0 has left the group and does not come to the " + std::string(what) +
                         ", where " + who + " waits; the group is broken",
                     0);
    } else if (!broken_) {
        char waited[32];
        std::snprintf(waited, sizeof(waited), "%.1f s", seconds_since(start));
        break_locked(who + " waited " + waited + " at the " + what +
                         " and rank 0, which keeps the group, did not answer; the group is broken",
                     0);
    }
    throw_broken();
}

void ProcessGroup::break_locked(const std::string& why, int peer) {
    if (broken_) return;
    broken_ = true;
    why_ = why;
    broken_peer_ = peer;
    changed_.notify_all();
}

void ProcessGroup::break_group(const std::string& why, int peer) {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    break_locked(why, peer);
    connection_->send(MessageKind::Broken, BodyWriter().i32(peer).text(why));
    wake_.wake();
}

void ProcessGroup::throw_if_broken(int) {
    std::lock_guard lock(mutex_);
    if (broken_) throw_broken();
}

bool ProcessGroup::broken() {
    std::lock_guard lock(mutex_);
    return broken_;
}

// ---- The thread -------------------------------------------------------------------------------

void ProcessGroup::serve(const std::stop_token& stopped) {
    const std::stop_callback waker(stopped, [this] { wake_.wake(); });
    while (!stopped.stop_requested()) {
        pollfd polled[2] = {{wake_.fd(), POLLIN, 0}, {connection_->fd(), POLLIN, 0}};
        {
            std::lock_guard lock(mutex_);
            polled[1].events = connection_->events();
        }
        if (poll(polled, 2, -1) < 0) continue;
        if (polled[0].revents != 0) wake_.clear();
        if (!transfer()) return;
    }
    say_farewell();
}

// False: nothing more can come.
bool ProcessGroup::transfer() {
    std::lock_guard lock(mutex_);
    const bool is_open = connection_->transfer();
    try {
        while (const auto message = connection_->next()) receive(*message);
    } catch (const BadMessage&) {
        break_locked("rank 0 sent bytes that are no message; the group is broken", 0);
        return false;
    }
    if (!is_open && !hub_has_left_) {
        break_locked("rank 0 is lost: its connection closed; the group is broken", 0);
    }
    return is_open;
}

void ProcessGroup::receive(const Message& message) {
    BodyReader body(message.body);
    switch (message.kind) {
        case MessageKind::Gathered: {
            if (body.u64() != number_) throw BadMessage("another collective's end");
            std::vector<Bytes> all;
            for (int r = 0; r < size(); ++r) all.push_back(body.blob());
            gathered_ = std::move(all);
            break;
        }
        case MessageKind::LateRank:
            std::fprintf(stderr, "mok: rank %d has waited %.0f s at the %s for rank %d\n",
                         place_.rank, options().warn_after.count(), what_.c_str(), body.i32());
            break;
        case MessageKind::Broken: {
            const int peer = body.i32();
            break_locked(body.text(), peer);
            break;
        }
        case MessageKind::Farewell:
            hub_has_left_ = true;
            break;
        default:
            throw BadMessage("a message that only a rank sends");
    }
    changed_.notify_all();
}

// What was sent shall arrive: a connection that is closed with unread bytes loses it.
void ProcessGroup::say_farewell() {
    {
        std::lock_guard lock(mutex_);
        connection_->send(MessageKind::Farewell);
    }
    const auto bound = Clock::now() + std::chrono::seconds(1);
    bool has_finished = false;
    while (Clock::now() < bound) {
        if (!transfer()) return;
        pollfd polled{connection_->fd(), POLLIN, 0};
        std::unique_lock lock(mutex_);
        if (!connection_->has_unsent() && !has_finished) {
            connection_->finish_sending();
            has_finished = true;
        }
        polled.events = connection_->events();
        lock.unlock();
        poll(&polled, 1, 10);
    }
}

}  // namespace mok::comm
