#include "comm/local_rank.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "openmok/error.h"
#include "plan/problem.h"

namespace mok::comm {
namespace {

constexpr int kMaxPort = 65535;
// Ports made from a job's name lie below those that systems hand out by themselves.
constexpr int kFirstOwnPort = 20000, kNumOwnPorts = 10000;

class Variables {
  public:
    explicit Variables(const Environment& environment) : environment_(environment) {}

    std::optional<std::string> text(const char* name) const { return environment_(name); }
    bool has(const char* name) const { return text(name).has_value(); }

    int number(const char* name) const {
        const std::string value = text(name).value_or("");
        int number = 0;
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), number);
        if (error != std::errc() || end != value.data() + value.size()) {
            throw ShapeError(std::string(name) + ": expected a number, found '" + value + "'");
        }
        return number;
    }
    // One sentence for all that are missing.
    void demand(const char* launcher, const std::vector<const char*>& names) const {
        std::string found, missing;
        for (const char* name : names) {
            std::string& list = has(name) ? found : missing;
            list += (list.empty() ? "" : ", ") + std::string(name);
        }
        if (missing.empty()) return;
        throw ShapeError(std::string(launcher) + ": " + found + (found.empty() ? "" : " set, ") +
                         "missing " + missing);
    }

  private:
    const Environment& environment_;
};

// The first host of a list as Slurm writes it: "node[003-010,012],login" begins with node003.
std::string first_host(const std::string& list) {
    const std::size_t bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
    const std::size_t end = list.find_first_of("-,]", bracket);
    const std::size_t close = list.find(']', bracket);
    if (end == std::string::npos || close == std::string::npos) {
        throw ShapeError("SLURM_STEP_NODELIST: expected a list of hosts, found '" + list + "'");
    }
    const std::size_t rest = list.find(',', close);
    const std::size_t tail = rest == std::string::npos ? std::string::npos : rest - close - 1;
    return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
           list.substr(close + 1, tail);
}

// FNV-1a, 32 bits.
int port_of_job(const std::string& job) {
    uint32_t hash = 2166136261u;
    for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    return kFirstOwnPort + static_cast<int>(hash % kNumOwnPorts);
}

LocalRank of_torchrun(const Variables& v) {
    v.demand("torchrun's variables", {"RANK", "WORLD_SIZE", "LOCAL_RANK"});
    LocalRank place{v.number("RANK"), v.number("WORLD_SIZE"), v.number("LOCAL_RANK"), "", 0, ""};
    if (place.size != 1) v.demand("torchrun's variables", {"MASTER_ADDR", "MASTER_PORT"});
    if (const auto run = v.text("TORCHELASTIC_RUN_ID")) {
        place.job = *run + "." + v.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
    }
    return place;
}

LocalRank of_open_mpi(const Variables& v) {
    v.demand("mpirun's variables", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
    LocalRank place{v.number("OMPI_COMM_WORLD_RANK"),
                    v.number("OMPI_COMM_WORLD_SIZE"),
                    v.number("OMPI_COMM_WORLD_LOCAL_RANK"),
                    "",
                    0,
                    v.text("PMIX_NAMESPACE").value_or("")};
    if (v.number("OMPI_COMM_WORLD_LOCAL_SIZE") == place.size) place.host = "localhost";
    return place;
}

LocalRank of_pmi(const Variables& v) {
    v.demand("mpirun's variables", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"});
    LocalRank place{
        v.number("PMI_RANK"), v.number("PMI_SIZE"), v.number("MPI_LOCALRANKID"), "", 0, ""};
    if (v.has("MPI_LOCALNRANKS") && v.number("MPI_LOCALNRANKS") == place.size) {
        place.host = "localhost";
    }
    return place;
}

LocalRank of_slurm(const Variables& v) {
    v.demand("srun's variables", {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                                  "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"});
    return {v.number("SLURM_PROCID"),
            v.number("SLURM_STEP_NUM_TASKS"),
            v.number("SLURM_LOCALID"),
            first_host(*v.text("SLURM_STEP_NODELIST")),
            0,
            *v.text("SLURM_JOB_ID") + "." + *v.text("SLURM_STEP_ID")};
}

// srun gives its tasks PMI's variables as well; mpirun under Slurm hands those of its own daemons
// on, which are other ranks than the processes'.
bool is_of_pmi(const Variables& v) {
    return v.has("PMI_RANK") &&
           !(v.has("SLURM_STEP_NUM_TASKS") && v.text("PMI_RANK") == v.text("SLURM_PROCID") &&
             v.text("PMI_SIZE") == v.text("SLURM_STEP_NUM_TASKS"));
}

int find_port(const Variables& v, const std::string& job) {
    const char* name = v.has("MOK_PORT") ? "MOK_PORT" : "MASTER_PORT";
    if (!v.has(name)) {
        if (!job.empty()) return port_of_job(job);
        throw ShapeError(
            "the launcher sets neither MASTER_PORT nor a job's name; set MOK_PORT to "
            "a free port of rank 0's host, the same on all ranks");
    }
    int port = v.number(name);
    check_port(name, port);
    const bool torchrun_listens =
        !v.has("MOK_PORT") && v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (torchrun_listens) port += port < kMaxPort ? 1 : -1;
    return port;
}

}  // namespace

void check_place(const LocalRank& place, const std::string& whose) {
    if (place.size < 1 || place.size > plan::kMaxRanks) {
        throw ShapeError(whose + " ranks: expected 1 to " + std::to_string(plan::kMaxRanks) +
                         ", found " + std::to_string(place.size));
    }
    if (place.rank < 0 || place.rank >= place.size) {
        throw ShapeError(whose + " rank: expected one below " + std::to_string(place.size) +
                         ", found " + std::to_string(place.rank));
    }
    if (place.local_rank < 0 || place.local_rank >= place.size) {
        throw ShapeError(whose + " local rank: expected one below " + std::to_string(place.size) +
                         ", found " + std::to_string(place.local_rank));
    }
}

void check_port(const std::string& name, int port) {
    if (port >= 1 && port <= kMaxPort) return;
    throw ShapeError(name + ": expected 1 to " + std::to_string(kMaxPort) + ", found " +
                     std::to_string(port));
}

Environment process_environment() {
    return [](const char* name) -> std::optional<std::string> {
        const char* value = std::getenv(name);
        if (value == nullptr) return std::nullopt;
        return value;
    };
}

std::optional<LocalRank> find_local_rank(const Environment& environment) {
    const Variables v(environment);
    LocalRank place;
    if (v.has("RANK") || v.has("WORLD_SIZE")) {
        place = of_torchrun(v);
    } else if (v.has("OMPI_COMM_WORLD_RANK")) {
        place = of_open_mpi(v);
    } else if (is_of_pmi(v)) {
        place = of_pmi(v);
    } else if (v.has("SLURM_PROCID") && v.has("SLURM_STEP_ID")) {
        place = of_slurm(v);
    } else {
        return std::nullopt;
    }
    check_place(place, "the launcher's");
    if (const auto job = v.text("MOK_JOB")) place.job = *job;
    if (place.size == 1) return place;
    if (const auto host = v.text("MASTER_ADDR")) place.host = *host;
    if (place.host.empty()) {
        throw ShapeError(
            "the launcher does not say where rank 0 runs; set MASTER_ADDR to its host, the same on "
            "all ranks");
    }
    place.port = find_port(v, place.job);
    return place;
}

int gpu_of(int local_rank, int num_gpus) {
    if (num_gpus == 1) return 0;
    if (local_rank < num_gpus) return local_rank;
    throw ShapeError("GPUs: expected at least " + std::to_string(local_rank + 1) +
                     " for the ranks of this host, found " + std::to_string(num_gpus));
}

}  // namespace mok::comm
