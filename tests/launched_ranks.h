#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mok_process.h"

extern char** environ;

namespace mok {

using Variables = std::map<std::string, std::string>;

// Processes that a test starts one by one, as a launcher would, each with variables of its own and
// its output in files.
class LaunchedRanks {
  public:
    explicit LaunchedRanks(std::string program) : program_(std::move(program)) {}
    ~LaunchedRanks() {
        for (const Process& p : processes_) {
            if (p.has_ended) continue;
            kill(p.pid, SIGKILL);
            waitpid(p.pid, nullptr, 0);
        }
    }
    LaunchedRanks(const LaunchedRanks&) = delete;
    LaunchedRanks& operator=(const LaunchedRanks&) = delete;

    // The index of the process. Without the launchers' variables of the test's own environment.
    int start(const Variables& variables, std::vector<std::string> arguments) {
        std::vector<std::string> environment;
        for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
        std::erase_if(environment, [](const std::string& e) {
            for (const char* start : {"RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "SLURM_",
                                      "OMPI_", "PMI", "MPI_", "MOK_", "TORCHELASTIC_"}) {
                if (e.starts_with(start)) return true;
            }
            return false;
        });
        for (const auto& [name, value] : variables) environment.push_back(name + '=' + value);
        arguments.insert(arguments.begin(), program_);

        Process p;
        const std::string name = std::to_string(processes_.size());
        p.out = folder_.path() / (name + ".out");
        p.err = folder_.path() / (name + ".err");
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        const int flags = O_WRONLY | O_CREAT;
        posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, p.out.c_str(), flags, 0600);
        posix_spawn_file_actions_addopen(&files, STDERR_FILENO, p.err.c_str(), flags, 0600);
        std::vector<char*> argv, envp;
        for (std::string& s : arguments) argv.push_back(s.data());
        for (std::string& s : environment) envp.push_back(s.data());
        argv.push_back(nullptr);
        envp.push_back(nullptr);
        const int error =
            posix_spawn(&p.pid, program_.c_str(), &files, nullptr, argv.data(), envp.data());
        posix_spawn_file_actions_destroy(&files);
        if (error != 0) throw std::runtime_error("cannot start " + program_);
        processes_.push_back(p);
        return static_cast<int>(processes_.size()) - 1;
    }

    // Waits for a process to end, a minute at most; status 128 + n where signal n ended it.
    ProcessResult result(int index) {
        Process& p = processes_[index];
        for (int i = 0; i < 6000 && !p.has_ended; ++i) {
            p.has_ended = waitpid(p.pid, &p.status, WNOHANG) == p.pid;
            if (!p.has_ended) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        ProcessResult r;
        if (p.has_ended) {
            r.status = WIFEXITED(p.status) ? WEXITSTATUS(p.status) : 128 + WTERMSIG(p.status);
        }
        r.out = read_bytes(p.out);
        r.err = read_bytes(p.err);
        return r;
    }

  private:
    struct Process {
        pid_t pid = -1;
        std::filesystem::path out, err;
        bool has_ended = false;
        int status = 0;
    };
    std::string program_;
    TemporaryFolder folder_;
    std::vector<Process> processes_;
};

// What torchrun sets for one rank of a group on this machine.
inline Variables torchrun_variables(int rank, int size, int port) {
    return {{"RANK", std::to_string(rank)},
            {"LOCAL_RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)}};
}

}  // namespace mok
