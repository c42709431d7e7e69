#pragma once

#include <optional>

#include "comm/net/message.h"
#include "comm/net/socket.h"

namespace mok::comm {

// Messages over one socket, without waiting: what cannot be sent or received now stays for the next
// poll(). Used by one thread at a time.
class Connection {
  public:
    Connection(Descriptor socket, std::size_t max_body)
        : socket_(std::move(socket)), max_body_(max_body) {}

    int fd() const { return socket_.fd(); }
    void set_max_body(std::size_t bytes) { max_body_ = bytes; }

    void send(MessageKind kind, const BodyWriter& body = {});
    bool has_unsent() const { return !unsent_.empty(); }
    // The events that poll() shall watch.
    short events() const;

    // Sends and receives what the socket takes and has. False: the other side has closed it, or it
    // has failed; what had come before can still be taken.
    bool transfer();
    // Sends alone what the socket takes. A failure shows in the next transfer().
    void flush() { send_some(); }
    // A message that transfer() has received; after each transfer(), until there is none: poll()
    // does not know of those that are here. Throws BadMessage.
    std::optional<Message> next() { return take_message(received_, max_body_); }
    // Nothing more will be sent; the other side sees the end after what has been sent.
    void finish_sending();

  private:
    bool send_some();
    bool receive_some();

    Descriptor socket_;
    std::size_t max_body_;
    Bytes unsent_, received_;
};

}  // namespace mok::comm
