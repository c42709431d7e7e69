#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "cli/backend.h"
#include "openmok/group.h"

// Commands whose ranks are processes, a GPU each: started by a launcher, or by the command itself,
// once per rank.
namespace mok::cli {

// The size of the group that a launcher has started this process in; absent without a launcher, and
// for one of a single process. Throws ShapeError where a launcher's variables contradict each
// other.
std::optional<int> launched_ranks();

// choose_backend for a command that runs over ranks: a launcher's ranks are of CUDA. Throws
// std::invalid_argument where they are asked to be of the CPU.
BackendChoice choose_rank_backend(std::string_view request);

// Starts this program with its own arguments once per rank, with a GPU each, and returns when all
// have done their work. Otherwise throws CLI::RuntimeError with the exit status; the ranks have
// said why. Throws ShapeError where the ranks outnumber the GPUs.
void run_as_processes(int num_ranks);

// This process's rank among those that a launcher has started, with its GPU. All ranks but 0 print
// nothing on standard output from here on. Throws std::invalid_argument with the same sentence on
// every rank where one has no GPU for it.
Group join_ranks(const GroupOptions& options);

// Runs what a rank does in a group of processes: where it throws, the others end too.
void run_rank(const Group& group, const std::function<void()>& body);

// What every command's --virtual-ranks counts.
inline constexpr const char* kVirtualRanks = "CUDA: ranks that share one GPU, instead of --ranks";

// Throws std::invalid_argument: --virtual-ranks was given with the CPU backend.
[[noreturn]] void refuse_virtual_ranks_on_cpu();

// Throws std::invalid_argument: an option is of a program that no launcher has started.
[[noreturn]] void refuse_launched(std::string_view option, int launched);

// Throws std::invalid_argument where an option says another number of ranks than the launcher.
void require_launched(std::string_view option, int found, int launched);

}  // namespace mok::cli
