#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "openmok/error.h"

namespace mok::cli {

// What a peer program said or did not say, in one sentence.
class PeerError : public Error {
  public:
    using Error::Error;
};

// Another program that answers JSON lines: one object to its standard input, one from its standard
// output. It runs in a process group of its own, which ends with this object.
class PeerProcess {
  public:
    using Seconds = std::chrono::duration<double>;

    // command[0] is looked for on PATH. Throws PeerError where it cannot be started.
    explicit PeerProcess(std::vector<std::string> command);
    ~PeerProcess();
    PeerProcess(const PeerProcess&) = delete;
    PeerProcess& operator=(const PeerProcess&) = delete;

    // The answer to one request. Throws PeerError where the peer does not answer within `bound`,
    // has ended, or answers anything but an object (it is ended then, and every later request says
    // so), and with the peer's own words where it answers {"error": ...} (it goes on).
    nlohmann::json ask(const nlohmann::json& request, Seconds bound);

  private:
    using Deadline = std::chrono::steady_clock::time_point;

    void start();
    void send(const std::string& line, Deadline deadline, Seconds bound);
    std::string receive_line(Deadline deadline, Seconds bound);
    void read_errors();
    [[noreturn]] void fail(const std::string& what);
    bool wait_for_end(Seconds bound);
    void end_group();
    std::string name() const;
    std::string last_words() const;

    std::vector<std::string> command_;
    pid_t pid_ = -1;       // -1: has ended and was waited for
    int wait_status_ = 0;  // valid where pid_ is -1
    int requests_ = -1, answers_ = -1, errors_ = -1;
    std::string received_;     // of answers_, after the last line taken
    std::string errors_text_;  // the end of what it wrote to stderr
    std::string failure_;      // why no request can be served any more
};

}  // namespace mok::cli
