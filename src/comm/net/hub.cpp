#include "comm/net/hub.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <stop_token>

namespace mok::comm {
namespace {

// A stranger may be silent for this long.
constexpr std::chrono::seconds kHelloBound{5};
constexpr std::size_t kMaxHelloBody = 1024;
constexpr std::size_t kMaxArrivalBody = kMaxExchangeBytes + 4096;
constexpr std::size_t kMaxStrangers = 64;

std::string rank_text(int rank) {
    return "rank " + std::to_string(rank);
}

}  // namespace

Hub::Hub(Descriptor listener, Descriptor rank_0, Membership membership)
    : listener_(std::move(listener)),
      membership_(std::move(membership)),
      members_(membership_.size) {
    links_.push_back({Connection(std::move(rank_0), kMaxArrivalBody), Clock::now(), 0});
    members_[0].link = &links_.back();
    members_[0].has_joined = true;
    thread_ = std::jthread([this](const std::stop_token& stopped) {
        const std::stop_callback waker(stopped, [this] { wake_.wake(); });
        while (!stopped.stop_requested()) run();
        say_farewell();
    });
}

void Hub::run() {
    std::vector<pollfd> polled = {{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    for (const Link& link : links_) {
        polled.push_back({link.connection.fd(), link.connection.events(), 0});
    }
    if (poll(polled.data(), polled.size(), poll_timeout_ms()) < 0) return;
    auto link = links_.begin();
    for (std::size_t i = 2; i < polled.size(); ++i) {
        const auto here = link++;
        const bool is_late = here->rank < 0 && Clock::now() - here->since > kHelloBound;
        const bool is_kept = polled[i].revents == 0 || serve(*here);
        if (is_kept && !is_late) continue;
        if (here->rank >= 0) members_[here->rank].link = nullptr;
        links_.erase(here);
    }
    if (polled[1].revents != 0) accept_links();
    settle();
    check_bounds();
}

// Until the next bound of a rank that waits or of a stranger.
int Hub::poll_timeout_ms() const {
    Clock::time_point next = Clock::now() + std::chrono::seconds(60);
    for (const Member& m : members_) {
        if (!m.has_arrived || is_broken_) continue;
        next = std::min(next, m.arrived_at + m.timeout);
        if (!m.was_warned) next = std::min(next, m.arrived_at + m.warn_after);
    }
    for (const Link& link : links_) {
        if (link.rank < 0) next = std::min(next, link.since + kHelloBound);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count()) + 1);
}

void Hub::accept_links() {
    while (true) {
        Descriptor socket = accept_one(listener_);
        if (socket.fd() < 0) return;
        const auto is_stranger = [](const Link& l) { return l.rank < 0; };
        if (static_cast<std::size_t>(std::ranges::count_if(links_, is_stranger)) >= kMaxStrangers) {
            links_.erase(std::ranges::find_if(links_, is_stranger));
        }
        links_.push_back({Connection(std::move(socket), kMaxHelloBody), Clock::now()});
    }
}

bool Hub::serve(Link& link) {
    const bool is_open = link.connection.transfer();
    try {
        while (auto message = link.connection.next()) {
            if (link.is_closing) continue;
            if (!receive(link, *message)) return false;
        }
    } catch (const BadMessage&) {
        lose(link, "sent bytes that are no message");
        return false;
    }
    if (!is_open) lose(link, "is lost: its connection closed");
    return is_open && !(link.is_closing && !link.connection.has_unsent());
}

bool Hub::receive(Link& link, const Message& message) {
    if (link.rank < 0) return message.kind == MessageKind::Hello && admit(link, message);
    Member& member = members_[link.rank];
    BodyReader body(message.body);
    switch (message.kind) {
        case MessageKind::Arrival:
            arrive(member, link.rank, message);
            return true;
        case MessageKind::Broken: {
            const int peer = body.i32();
            break_all(body.text(), peer, &link);
            return true;
        }
        case MessageKind::Farewell:
            member.has_left = true;
            return true;
        default:
            throw BadMessage("a message that only the hub sends");
    }
}

// Welcomes a rank, or says why it cannot join. Either way the others notice nothing.
bool Hub::admit(Link& link, const Message& hello) {
    BodyReader body(hello.body);
    const uint32_t version = body.u32();
    std::string why;
    if (version != kProtocolVersion) {
        why = "the group speaks version " + std::to_string(kProtocolVersion) +
              " of its protocol, found version " + std::to_string(version);
    } else {
        const int rank = body.i32(), size = body.i32();
        const std::string job = body.text();
        if (job != membership_.job) {
            why = "the group belongs to job '" + membership_.job + "', found job '" + job + "'";
        } else if (size != membership_.size) {
            why = "rank 0 has a group of " + std::to_string(membership_.size) + " ranks, " +
                  rank_text(rank) + " one of " + std::to_string(size);
        } else if (rank < 0 || rank >= size) {
            why =
                "expected a rank below " + std::to_string(size) + ", found " + std::to_string(rank);
        } else if (members_[rank].has_joined) {
            why = rank_text(rank) + " has joined already";
        } else if (is_broken_) {
            why = why_;
        } else {
            link.rank = rank;
            link.connection.set_max_body(kMaxArrivalBody);
            members_[rank].link = &link;
            members_[rank].has_joined = true;
        }
    }
    link.is_closing = !why.empty();
    BodyWriter reply;
    if (link.is_closing) reply.text(why);
    link.connection.send(link.is_closing ? MessageKind::Refusal : MessageKind::Welcome, reply);
    link.connection.flush();
    return true;
}

void Hub::arrive(Member& member, int rank, const Message& arrival) {
    BodyReader body(arrival.body);
    const uint64_t number = body.u64();
    member.timeout = std::chrono::nanoseconds(body.u64());
    member.warn_after = std::chrono::nanoseconds(body.u64());
    const std::string what = body.text();
    member.contribution = body.blob();
    if (is_broken_) return;
    const int first = waiting_rank();
    if (first < 0) what_ = what;
    if (number != number_ || member.has_arrived || what != what_) {
        break_all(rank_text(rank) + " came to the " + what + " while rank " +
                      std::to_string(std::max(first, 0)) + " was at the " + what_ +
                      "; the group is broken",
                  rank);
        return;
    }
    member.has_arrived = true;
    member.was_warned = false;
    member.arrived_at = Clock::now();
}

void Hub::lose(const Link& link, const char* how) {
    if (link.rank < 0 || members_[link.rank].has_left) return;
    members_[link.rank].has_left = true;
    break_all(rank_text(link.rank) + " " + how + "; the group is broken", link.rank, &link);
}

void Hub::break_all(const std::string& why, int peer, const Link* except) {
    if (is_broken_) return;
    is_broken_ = true;
    why_ = why;
    for (Link& link : links_) {
        if (link.rank < 0 || &link == except) continue;
        link.connection.send(MessageKind::Broken, BodyWriter().i32(peer).text(why));
        link.connection.flush();
    }
}

int Hub::missing_rank() const {
    const auto missing = std::ranges::find(members_, false, &Member::has_arrived);
    return missing == members_.end() ? -1 : static_cast<int>(missing - members_.begin());
}

int Hub::waiting_rank() const {
    const auto waiting = std::ranges::find(members_, true, &Member::has_arrived);
    return waiting == members_.end() ? -1 : static_cast<int>(waiting - members_.begin());
}

// Ends the collective when everyone has come, breaks the group when someone never will.
void Hub::settle() {
    const int waiting = waiting_rank();
    if (is_broken_ || waiting < 0) return;
    if (missing_rank() < 0) return finish_collective();
    for (std::size_t r = 0; r < members_.size(); ++r) {
        if (members_[r].has_arrived || !members_[r].has_left) continue;
        break_all(rank_text(static_cast<int>(r)) + " has left the group and does not come to the " +
                      what_ + ", where " + rank_text(waiting) + " waits; the group is broken",
                  static_cast<int>(r));
        return;
    }
}

void Hub::finish_collective() {
    BodyWriter body;
    body.u64(number_);
    for (const Member& m : members_) body.blob(m.contribution);
    for (Member& m : members_) {
        m.has_arrived = false;
        if (m.link == nullptr) continue;
        m.link->connection.send(MessageKind::Gathered, body);
        m.link->connection.flush();
    }
    ++number_;
}

void Hub::check_bounds() {
    const int missing = missing_rank();
    for (std::size_t r = 0; r < members_.size() && !is_broken_; ++r) {
        Member& m = members_[r];
        if (!m.has_arrived) continue;
        const auto waited = Clock::now() - m.arrived_at;
        if (waited >= m.timeout) {
            char text[256];
            std::snprintf(text, sizeof(text),
                          "rank %zu waited %.1f s at the %s and rank %d did not come; the group is "
                          "broken",
                          r, std::chrono::duration<double>(waited).count(), what_.c_str(), missing);
            break_all(text, missing);
        } else if (waited >= m.warn_after && !m.was_warned && m.link != nullptr) {
            m.was_warned = true;
            m.link->connection.send(MessageKind::LateRank, BodyWriter().i32(missing));
            m.link->connection.flush();
        }
    }
}

// The connections stay until the others have closed theirs, so that nothing that was sent is lost.
void Hub::say_farewell() {
    for (Link& link : links_) {
        link.connection.send(MessageKind::Farewell);
        link.connection.flush();
        link.connection.finish_sending();
    }
    const Clock::time_point bound = Clock::now() + std::chrono::seconds(1);
    while (!links_.empty() && Clock::now() < bound) {
        std::vector<pollfd> polled;
        for (const Link& link : links_) polled.push_back({link.connection.fd(), POLLIN, 0});
        poll(polled.data(), polled.size(), 10);
        std::erase_if(links_, [](Link& link) {
            const bool is_open = link.connection.transfer();
            try {
                while (link.connection.next()) continue;
            } catch (const BadMessage&) {
                return true;
            }
            return !is_open;
        });
    }
}

}  // namespace mok::comm
