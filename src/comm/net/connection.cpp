#include "comm/net/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace mok::comm {
namespace {

bool would_wait() {
    return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

void Connection::send(MessageKind kind, const BodyWriter& body) {
    const Bytes bytes = encoded(kind, body);
    unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
}

short Connection::events() const {
    return static_cast<short>(POLLIN | (has_unsent() ? POLLOUT : 0));
}

bool Connection::transfer() {
    // Both in any case: a closed socket may hold a last message.
    const bool sent = send_some();
    return receive_some() && sent;
}

bool Connection::send_some() {
    std::size_t sent = 0;
    bool is_open = true;
    while (sent < unsent_.size()) {
        const ssize_t n =
            ::send(fd(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            is_open = would_wait();
            break;
        }
        sent += static_cast<std::size_t>(n);
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(sent));
    return is_open;
}

bool Connection::receive_some() {
    std::array<std::byte, 65536> chunk;
    while (true) {
        const ssize_t n = recv(fd(), chunk.data(), chunk.size(), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return would_wait();
        if (n == 0) return false;
        received_.insert(received_.end(), chunk.begin(), chunk.begin() + n);
        // A message at a time is enough: a stranger shall not fill the memory.
        if (received_.size() > max_body_ + kHeaderBytes) return true;
    }
}

void Connection::finish_sending() {
    shutdown(fd(), SHUT_WR);
}

}  // namespace mok::comm
