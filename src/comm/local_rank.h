#pragma once

#include <functional>
#include <optional>
#include <string>

namespace mok::comm {

// Which rank of a group of processes this one is, and where rank 0 is found.
struct LocalRank {
    int rank = 0;
    int size = 1;
    int local_rank = 0;  // among the ranks of this host
    std::string host;    // of rank 0; empty where the group has one rank
    int port = 0;        // of the group's rendezvous there
    std::string job;     // equal on all ranks: nobody of another job joins
};

// Throw ShapeError with one sentence; `whose` and `name` begin it.
void check_place(const LocalRank& place, const std::string& whose);
void check_port(const std::string& name, int port);

// The value of an environment variable, if it is set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment process_environment();

// What the launcher has set:
//   torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   mpirun:   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, or PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
//   srun:     SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST
// The first of these that is there counts. The port is MOK_PORT, else MASTER_PORT (the next one
// where torchrun's own store holds that), else one that is made from the job's name. Nothing: no
// launcher. Throws ShapeError with one sentence where the variables are incomplete or contradict
// each other.
std::optional<LocalRank> find_local_rank(const Environment& environment);

// The GPU of a rank among those that its process can see: its local rank, or the only one where the
// launcher shows each rank its own. Throws ShapeError that names both numbers where there are too
// few.
int gpu_of(int local_rank, int num_gpus);

}  // namespace mok::comm
