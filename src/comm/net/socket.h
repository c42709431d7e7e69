#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace mok::comm {

// A file descriptor that is closed with its owner; -1: none.
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    int fd() const { return fd_; }

  private:
    int fd_ = -1;
};

// All sockets do not block and are not inherited by programs that the process starts.

// Listens at a port, 0: any free one. On the loopback interface only where the host is localhost or
// a loopback address, so that nothing outside can reach a group of one machine. Throws Error with
// the reason.
Descriptor listen_at(const std::string& host, int port);
int port_of(const Descriptor& listener);

// The next connection that waits at a listener; without one, fd -1.
Descriptor accept_one(const Descriptor& listener);

// Connects, and tries again while nobody listens, until the deadline. Without success fd is -1 and
// `reason` says why.
Descriptor connect_to(const std::string& host, int port,
                      std::chrono::steady_clock::time_point deadline, std::string& reason);

// The two ends of a connection within this process.
std::pair<Descriptor, Descriptor> connected_pair();

// Wakes a thread that polls it: readable from wake() until clear().
class WakeUp {
  public:
    WakeUp();
    int fd() const { return event_.fd(); }
    void wake() const;
    void clear() const;

  private:
    Descriptor event_;
};

}  // namespace mok::comm
