#include "comm/net/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "openmok/error.h"

namespace mok::comm {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Empty, with a reason, where the name cannot be resolved. host null: every interface.
AddressList resolve(const char* host, int port, std::string& reason) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (host == nullptr ? AI_PASSIVE : 0);
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
    if (error != 0) reason = gai_strerror(error);
    return {error == 0 ? found : nullptr, &freeaddrinfo};
}

// Messages are small and each is waited for; a host that vanished is noticed in half a minute.
void set_options(const Descriptor& socket) {
    const auto set = [&](int level, int name, int value) {
        setsockopt(socket.fd(), level, name, &value, sizeof(value));
    };
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(IPPROTO_TCP, TCP_KEEPCNT, 4);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

Descriptor listen_at(const addrinfo& address, std::string& reason) {
    Descriptor socket(::socket(address.ai_family, kSocketFlags, 0));
    const int yes = 1, no = 0;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (address.ai_family == AF_INET6) {
        setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    }
    if (socket.fd() >= 0 && bind(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 &&
        listen(socket.fd(), 128) == 0) {
        return socket;
    }
    reason = std::strerror(errno);
    return {};
}

Descriptor connect_once(const addrinfo& address, Clock::time_point deadline, std::string& reason) {
    Descriptor socket(::socket(address.ai_family, kSocketFlags, 0));
    if (socket.fd() < 0) {
        reason = std::strerror(errno);
        return {};
    }
    int error = connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        pollfd wait{socket.fd(), POLLOUT, 0};
        error = ETIMEDOUT;
        socklen_t length = sizeof(error);
        if (poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) > 0) {
            getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
        }
    }
    if (error == 0) {
        set_options(socket);
        return socket;
    }
    reason = std::strerror(error);
    return {};
}

}  // namespace

Descriptor::~Descriptor() {
    if (fd_ >= 0) close(fd_);
}

Descriptor listen_at(const std::string& host, int port) {
    std::string reason;
    // On every interface: the IPv6 socket takes IPv4 too; where there is no IPv6, IPv4 alone.
    const AddressList list = resolve(is_loopback(host) ? host.c_str() : nullptr, port, reason);
    for (const int family : {AF_INET6, AF_INET}) {
        for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
            if (a->ai_family != family || (host == "localhost" && family == AF_INET6)) continue;
            Descriptor listener = listen_at(*a, reason);
            if (listener.fd() >= 0) return listener;
        }
    }
    throw Error("rank 0 cannot listen at " + host + ":" + std::to_string(port) + ": " + reason +
                "; MOK_PORT, the same on all ranks, sets another port");
}

int port_of(const Descriptor& listener) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length);
    const auto port = address.ss_family == AF_INET6
                          ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                          : reinterpret_cast<const sockaddr_in*>(&address)->sin_port;
    return ntohs(port);
}

Descriptor accept_one(const Descriptor& listener) {
    Descriptor socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() >= 0) set_options(socket);
    return socket;
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline,
                      std::string& reason) {
    constexpr std::chrono::milliseconds kPause{50};
    while (true) {
        // Resolved anew each time: a name may appear while the hosts of a job start.
        const AddressList list = resolve(host.c_str(), port, reason);
        for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
            Descriptor socket = connect_once(*a, deadline, reason);
            if (socket.fd() >= 0) return socket;
        }
        if (Clock::now() + kPause >= deadline) return {};
        std::this_thread::sleep_for(kPause);
    }
}

std::pair<Descriptor, Descriptor> connected_pair() {
    int ends[2];
    if (socketpair(AF_UNIX, kSocketFlags, 0, ends) != 0) {
        throw Error(std::string("a pair of sockets cannot be made: ") + std::strerror(errno));
    }
    return {Descriptor(ends[0]), Descriptor(ends[1])};
}

WakeUp::WakeUp() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (event_.fd() < 0) {
        throw Error(std::string("an event cannot be made: ") + std::strerror(errno));
    }
}

void WakeUp::wake() const {
    const uint64_t one = 1;
    // Fails only where the event is already set 2^64 - 2 times: it is readable then.
    [[maybe_unused]] const ssize_t written = write(event_.fd(), &one, sizeof(one));
}

void WakeUp::clear() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(event_.fd(), &count, sizeof(count));
}

}  // namespace mok::comm
