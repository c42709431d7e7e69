#include "cli/rank_place.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/exit_status.h"
#include "comm/local_rank.h"
#include "comm/rank_processes.h"
#include "openmok/error.h"

namespace mok::cli {
namespace {

// Those of this process, without the program's name.
std::vector<std::string> own_arguments() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> arguments;
    std::string argument;
    while (std::getline(file, argument, '\0')) arguments.push_back(argument);
    if (arguments.empty()) {
        throw std::runtime_error("the program's arguments cannot be read from /proc/self/cmdline");
    }
    arguments.erase(arguments.begin());
    return arguments;
}

}  // namespace

std::optional<int> launched_ranks() {
    const auto place = comm::find_local_rank(comm::process_environment());
    if (!place || place->size == 1) return std::nullopt;
    return place->size;
}

BackendChoice choose_rank_backend(std::string_view request) {
    const std::optional<int> launched = launched_ranks();
    if (!launched) return choose_backend(request);
    if (request == "cpu") {
        throw std::invalid_argument(
            fmt::format("--backend cpu: its ranks are threads of one process, found one of a "
                        "launcher's {} processes",
                        *launched));
    }
    // Where a GPU is missing the group says so, on all ranks.
    if (request == "auto" || (request == "cuda" && has_cuda_backend())) {
        return {Backend::Cuda,
                {Device::Kind::Cuda, 0},
                fmt::format("{} ranks of a launcher", *launched)};
    }
    return choose_backend(request);
}

void run_as_processes(int num_ranks) {
    comm::demand_gpu_per_rank(num_ranks, count_cuda_devices());
    comm::SpawnOptions options;
    options.num_ranks = num_ranks;
    options.command = own_arguments();
    options.command.insert(options.command.begin(), comm::own_program());
    options.consequence_status = kTimeout;
    std::fflush(stdout);
    const int status = comm::run_rank_processes(options);
    if (status != 0) throw CLI::RuntimeError(status);
}

Group join_ranks(const GroupOptions& options) {
    try {
        const Group group = Group::cuda_from_environment(options);
        if (group.rank() != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) {
            throw std::runtime_error("standard output: cannot be turned to /dev/null");
        }
        return group;
    } catch (const TimeoutError&) {
        throw;
    } catch (const Error& e) {
        throw std::invalid_argument(e.what());
    }
}

void run_rank(const Group& group, const std::function<void()>& body) {
    try {
        body();
    } catch (const TimeoutError&) {
        throw;  // the group is broken, and the others know
    } catch (const std::exception& e) {
        group.abandon(e.what());
        throw;
    }
}

void refuse_virtual_ranks_on_cpu() {
    throw std::invalid_argument(
        "--virtual-ranks: expected --backend cuda, found cpu, whose ranks --ranks counts");
}

void refuse_launched(std::string_view option, int launched) {
    throw std::invalid_argument(
        fmt::format("{}: expected one process, found one of a launcher's {}", option, launched));
}

void require_launched(std::string_view option, int found, int launched) {
    if (found == launched) return;
    throw std::invalid_argument(
        fmt::format("{}: expected the launcher's {} ranks, found {}", option, launched, found));
}

}  // namespace mok::cli
