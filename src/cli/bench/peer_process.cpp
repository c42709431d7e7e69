#include "cli/bench/peer_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

namespace mok::cli {
namespace {

constexpr size_t kLongestAnswer = 1 << 20;  // bytes of a line
constexpr size_t kKeptErrors = 4096;        // bytes of stderr
constexpr PeerProcess::Seconds kTimeToQuit{2.0};

std::string system_text(int error) {
    return std::strerror(error);
}

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 1 << 30));
}

bool is_past(std::chrono::steady_clock::time_point deadline) {
    return std::chrono::steady_clock::now() >= deadline;
}

void close_if_open(int& descriptor) {
    if (descriptor >= 0) close(descriptor);
    descriptor = -1;
}

// How a process ended, for the reader.
std::string end_text(int wait_status) {
    if (WIFSIGNALED(wait_status)) {
        return fmt::format("was ended by signal {} ({})", WTERMSIG(wait_status),
                           strsignal(WTERMSIG(wait_status)));
    }
    return fmt::format("ended with exit status {}", WEXITSTATUS(wait_status));
}

// Appends what can be read now. Returns the number of bytes, 0 at the end, -1 where there is none
// yet.
ssize_t read_more(int descriptor, std::string& text) {
    std::array<char, 4096> buffer;
    const ssize_t num = read(descriptor, buffer.data(), buffer.size());
    if (num > 0) text.append(buffer.data(), static_cast<size_t>(num));
    return num;
}

}  // namespace

PeerProcess::PeerProcess(std::vector<std::string> command) : command_(std::move(command)) {
    try {
        start();
    } catch (...) {
        for (int* descriptor : {&requests_, &answers_, &errors_}) close_if_open(*descriptor);
        throw;
    }
}

void PeerProcess::start() {
    // Requests go through a socket, for a write to one can do without SIGPIPE.
    std::array<int, 2> in{-1, -1}, out{-1, -1}, err{-1, -1};
    const bool made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) == 0 &&
                      pipe2(out.data(), O_CLOEXEC) == 0 && pipe2(err.data(), O_CLOEXEC) == 0;
    const int made_error = errno;
    requests_ = in[0];
    answers_ = out[0];
    errors_ = err[0];
    int spawn_error = 0;
    if (made) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, in[1], 0);
        posix_spawn_file_actions_adddup2(&actions, out[1], 1);
        posix_spawn_file_actions_adddup2(&actions, err[1], 2);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
        std::vector<char*> arguments;
        for (std::string& word : command_) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        spawn_error =
            posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&actions);
    }
    for (int* other_end : {&in[1], &out[1], &err[1]}) close_if_open(*other_end);
    if (!made) throw PeerError(fmt::format("{}: {}", name(), system_text(made_error)));
    if (spawn_error != 0) {
        pid_ = -1;
        throw PeerError(fmt::format("{}: cannot be started: {}", name(), system_text(spawn_error)));
    }
    for (const int descriptor : {requests_, answers_, errors_}) {
        fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    }
}

PeerProcess::~PeerProcess() {
    close_if_open(requests_);  // the end of its input
    close_if_open(answers_);
    close_if_open(errors_);
    wait_for_end(kTimeToQuit);
    end_group();
}

nlohmann::json PeerProcess::ask(const nlohmann::json& request, Seconds bound) {
    if (!failure_.empty()) throw PeerError(failure_);
    const Deadline deadline =
        std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(bound);
    send(request.dump() + "\n", deadline, bound);
    const std::string line = receive_line(deadline, bound);
    const nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
    if (!answer.is_object()) {
        fail(fmt::format("expected a JSON object as answer, found \"{}\"", line.substr(0, 80)));
    }
    if (const auto error = answer.find("error"); error != answer.end()) {
        throw PeerError(
            fmt::format("{}: {}", name(), error->is_string() ? error->get<std::string>() : line));
    }
    return answer;
}

void PeerProcess::send(const std::string& line, Deadline deadline, Seconds bound) {
    for (size_t sent = 0; sent < line.size();) {
        const ssize_t num = ::send(requests_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
        if (num > 0) {
            sent += static_cast<size_t>(num);
            continue;
        }
        if (errno != EAGAIN && errno != EINTR) fail("");
        if (is_past(deadline)) fail(fmt::format("took no request within {:g} s", bound.count()));
        pollfd wait{requests_, POLLOUT, 0};
        poll(&wait, 1, milliseconds_until(deadline));
    }
}

std::string PeerProcess::receive_line(Deadline deadline, Seconds bound) {
    while (true) {
        if (const size_t end = received_.find('\n'); end != std::string::npos) {
            std::string line = received_.substr(0, end);
            received_.erase(0, end + 1);
            return line;
        }
        if (received_.size() > kLongestAnswer) {
            fail(fmt::format("expected an answer of one line, found {} bytes without an end",
                             received_.size()));
        }
        std::array<pollfd, 2> wait{pollfd{answers_, POLLIN, 0}, pollfd{errors_, POLLIN, 0}};
        poll(wait.data(), wait.size(), milliseconds_until(deadline));
        read_errors();
        const ssize_t num = read_more(answers_, received_);
        if (num == 0) fail("");
        if (num < 0 && errno != EAGAIN && errno != EINTR) fail(system_text(errno));
        if (num < 0 && is_past(deadline)) {
            fail(fmt::format("no answer within {:g} s", bound.count()));
        }
    }
}

// Closed where the peer has closed it, so that it does not wake the wait for answers any more.
void PeerProcess::read_errors() {
    ssize_t num = 1;
    while (errors_ >= 0 && num > 0) num = read_more(errors_, errors_text_);
    if (num == 0) close_if_open(errors_);
    if (errors_text_.size() > kKeptErrors) {
        errors_text_.erase(0, errors_text_.size() - kKeptErrors);
    }
}

// Ends the peer. Without words of its own the sentence says how the peer ended.
void PeerProcess::fail(const std::string& what) {
    std::string why = what;
    if (what.empty()) {
        const bool ended = wait_for_end(kTimeToQuit);
        why = ended ? end_text(wait_status_) + " before it answered" : "closed its output";
    }
    read_errors();
    end_group();
    failure_ = fmt::format("{}: {}{}", name(), why, last_words());
    throw PeerError(failure_);
}

bool PeerProcess::wait_for_end(Seconds bound) {
    const auto deadline = std::chrono::steady_clock::now() + bound;
    while (pid_ > 0) {
        if (waitpid(pid_, &wait_status_, WNOHANG) == pid_) {
            // Children of its own may still be there.
            kill(-pid_, SIGKILL);
            pid_ = -1;
        } else if (std::chrono::steady_clock::now() >= deadline) {
            return false;
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    return true;
}

void PeerProcess::end_group() {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    waitpid(pid_, &wait_status_, 0);
    pid_ = -1;
}

std::string PeerProcess::name() const {
    return fmt::format("peer {}", fmt::join(command_, " "));
}

// The last line that it wrote to stderr.
std::string PeerProcess::last_words() const {
    const size_t end = errors_text_.find_last_not_of(" \n\r\t");
    if (end == std::string::npos) return {};
    const size_t begin = errors_text_.find_last_of('\n', end);
    const size_t first = begin == std::string::npos ? 0 : begin + 1;
    return fmt::format("; its last words: {}", errors_text_.substr(first, end + 1 - first));
}

}  // namespace mok::cli
