#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace mok::comm {

struct SpawnOptions {
    int num_ranks = 1;
    std::vector<std::string> command;  // the program's path and its arguments
    // After one rank has failed: how long the others may take to end by themselves, and then after
    // a SIGTERM, before they are killed.
    std::chrono::duration<double> grace = std::chrono::seconds(2);
    // The exit status by which a rank says that another one has failed or is late; 0: there is
    // none.
    int consequence_status = 0;
};

// Starts a command once per rank on this machine, with the variables of Group::from_environment
// (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MOK_JOB) set to a
// group of its own, and waits for all of them. Rank 0 has this process's input, output and error
// stream. Of the others the error stream is passed on, each line behind "rank r: "; they have no
// input and their output is dropped. When this process dies, so do they.
//
// Returns 0 when all did, otherwise the largest exit status of those that ended by themselves, 128
// + n for a rank that signal n ended (it is named on stderr); a consequence only where no rank has
// another one. Throws Error where the program cannot
// be started.
int run_rank_processes(const SpawnOptions& options);

// The path of the program that runs.
std::string own_program();

// Throws ShapeError that names both numbers where the ranks outnumber the GPUs.
void demand_gpu_per_rank(int num_ranks, int num_gpus);

}  // namespace mok::comm
