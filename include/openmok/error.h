#pragma once

#include <stdexcept>
#include <string>

namespace mok {

// Every exception of the library. what() is one sentence: what, where, expected, found.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// A shape, dtype, stride, option or id that a call cannot take. Nothing has been written.
class ShapeError : public Error {
  public:
    using Error::Error;
};

// A rank that did not come, or a task that did not end, within the group's bound. The group is
// broken from then on: every later call on any of its ranks throws this at once.
class TimeoutError : public Error {
  public:
    TimeoutError(const std::string& sentence, int rank, int peer)
        : Error(sentence), rank(rank), peer(peer) {}
    int rank;  // where the wait expired
    int peer;  // who was waited for, -1: this rank's own work
};

}  // namespace mok
