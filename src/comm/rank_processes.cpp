#include "comm/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "comm/net/socket.h"
#include "openmok/error.h"

extern char** environ;

namespace mok::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCannotExecute = 127;  // as shells have it

// One rank's process and, of all but rank 0, its error stream.
struct Child {
    int rank = 0;
    pid_t pid = -1;
    Descriptor errors;
    std::string line;  // what has come of the line after the last whole one
    bool is_running = true, was_stopped = false;
    int status = 0;
};

// Strings in the form that exec takes. Made before fork: afterwards nothing may allocate.
class StringTable {
  public:
    explicit StringTable(std::vector<std::string> strings) : strings_(std::move(strings)) {
        for (std::string& s : strings_) pointers_.push_back(s.data());
        pointers_.push_back(nullptr);
    }
    char** data() { return pointers_.data(); }

  private:
    std::vector<std::string> strings_;
    std::vector<char*> pointers_;
};

std::vector<std::string> environment_of(int rank, int num_ranks, int port, const std::string& job) {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const std::size_t equals = text.find('=');
        if (equals != std::string::npos)
            variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
    for (const char* name : {"MOK_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"}) {
        variables.erase(name);
    }
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(num_ranks);
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = std::to_string(port);
    variables["MOK_JOB"] = job;
    std::vector<std::string> entries;
    for (const auto& [name, value] : variables) {
        entries.push_back(name);
        entries.back().append("=").append(value);
    }
    return entries;
}

std::string random_job() {
    std::random_device device;
    char text[40];
    std::snprintf(text, sizeof(text), "mok-%08x%08x", device(), device());
    return text;
}

// In the child, between fork and exec: calls that are safe there.
[[noreturn]] void become(char** command, char** environment, pid_t parent, int errors_fd) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kCannotExecute);  // it died before the line above
    if (errors_fd >= 0) {
        const int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, STDIN_FILENO);
        dup2(nothing, STDOUT_FILENO);
        dup2(errors_fd, STDERR_FILENO);
    }
    execve(command[0], command, environment);
    _exit(kCannotExecute);
}

std::string signal_text(int signal) {
    return "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

class Ranks {
  public:
    explicit Ranks(const SpawnOptions& options) : options_(options) {}
    // Nothing that was started outlives this.
    ~Ranks() {
        for (Child& child : children_) {
            if (!child.is_running) continue;
            kill(child.pid, SIGKILL);
            waitpid(child.pid, nullptr, 0);
        }
    }
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    void start() {
        const int port = port_of(listen_at("127.0.0.1", 0));
        const std::string job = random_job();
        for (int rank = 0; rank < options_.num_ranks; ++rank) start_rank(rank, port, job);
    }

    int wait() {
        Clock::time_point deadline{};  // of the present patience, once a rank has failed
        int patience = 0;              // 0: wait for ever, 1: asked nobody yet, 2: asked, 3: killed
        while (std::ranges::any_of(children_, &Child::is_running)) {
            forward_errors();
            for (Child& child : children_) reap(child);
            const bool has_failed = std::ranges::any_of(
                children_, [](const Child& c) { return !c.is_running && c.status != 0; });
            if (!has_failed) continue;
            if (patience > 0 && Clock::now() < deadline) continue;
            if (patience == 1) stop_all(SIGTERM);
            if (patience == 2) stop_all(SIGKILL);
            ++patience;
            deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.grace);
        }
        forward_errors();
        int worst = 0, consequence = 0;
        for (Child& child : children_) {
            if (!child.line.empty()) print_line(child, child.line);
            if (child.was_stopped) continue;
            int& status = child.status == options_.consequence_status ? consequence : worst;
            status = std::max(status, child.status);
        }
        return worst != 0 ? worst : consequence;
    }

  private:
    void start_rank(int rank, int port, const std::string& job) {
        StringTable command(options_.command);
        StringTable environment(environment_of(rank, options_.num_ranks, port, job));
        Child child;
        child.rank = rank;
        Descriptor theirs;
        if (rank > 0) {
            int ends[2];
            if (pipe2(ends, O_CLOEXEC) != 0) fail("a pipe cannot be made");
            child.errors = Descriptor(ends[0]);
            theirs = Descriptor(ends[1]);
            fcntl(child.errors.fd(), F_SETFL, O_NONBLOCK);
        }
        const pid_t parent = getpid();
        child.pid = fork();
        if (child.pid == 0) become(command.data(), environment.data(), parent, theirs.fd());
        if (child.pid < 0) fail("a process cannot be started");
        children_.push_back(std::move(child));
    }

    [[noreturn]] static void fail(const char* what) {
        throw Error(std::string(what) + ": " + std::strerror(errno));
    }

    // Waits a moment for lines, and passes on those that have come.
    void forward_errors() {
        std::vector<pollfd> polled;
        for (const Child& child : children_) polled.push_back({child.errors.fd(), POLLIN, 0});
        poll(polled.data(), polled.size(), 20);
        for (std::size_t i = 0; i < polled.size(); ++i) {
            if (polled[i].revents != 0) forward_errors(children_[i]);
        }
    }

    void forward_errors(Child& child) {
        std::array<char, 4096> chunk;
        ssize_t n = 0;
        while ((n = read(child.errors.fd(), chunk.data(), chunk.size())) > 0) {
            child.line.append(chunk.data(), static_cast<std::size_t>(n));
        }
        std::size_t end = 0;
        while ((end = child.line.find('\n')) != std::string::npos) {
            print_line(child, child.line.substr(0, end));
            child.line.erase(0, end + 1);
        }
        if (n == 0) child.errors = Descriptor();
    }

    static void print_line(const Child& child, const std::string& line) {
        std::fprintf(stderr, "rank %d: %s\n", child.rank, line.c_str());
    }

    void reap(Child& child) {
        int status = 0;
        if (!child.is_running || waitpid(child.pid, &status, WNOHANG) != child.pid) return;
        child.is_running = false;
        child.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (WIFSIGNALED(status) && !child.was_stopped) {
            std::fprintf(stderr, "mok: rank %d was ended by %s\n", child.rank,
                         signal_text(WTERMSIG(status)).c_str());
        }
    }

    void stop_all(int signal) {
        for (Child& child : children_) {
            if (!child.is_running) continue;
            kill(child.pid, signal);
            if (!child.was_stopped) {
                std::fprintf(stderr, "mok: rank %d did not end by itself and is ended\n",
                             child.rank);
            }
            child.was_stopped = true;
        }
    }

    const SpawnOptions& options_;
    std::vector<Child> children_;
};

}  // namespace

int run_rank_processes(const SpawnOptions& options) {
    if (options.command.empty() || access(options.command[0].c_str(), X_OK) != 0) {
        throw Error("ranks: expected a program, found '" +
                    (options.command.empty() ? "" : options.command[0]) + "'");
    }
    Ranks ranks(options);
    ranks.start();
    return ranks.wait();
}

std::string own_program() {
    std::array<char, 4096> path;
    const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
    if (length <= 0 || static_cast<std::size_t>(length) == path.size()) {
        throw Error("the program's own path cannot be read from /proc/self/exe");
    }
    return {path.data(), static_cast<std::size_t>(length)};
}

void demand_gpu_per_rank(int num_ranks, int num_gpus) {
    if (num_ranks <= num_gpus) return;
    throw ShapeError("ranks: expected at most " + std::to_string(num_gpus) +
                     ", one per GPU of this machine, found " + std::to_string(num_ranks));
}

}  // namespace mok::comm
