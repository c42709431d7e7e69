// What launchers say about a rank, and what they leave out.
#include <gtest/gtest.h>

#include <map>

#include "comm/local_rank.h"
#include "openmok/error.h"

namespace mok::comm {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<LocalRank> find(const Variables& variables) {
    return find_local_rank([&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
    });
}

std::string sentence(const Variables& variables) {
    try {
        find(variables);
    } catch (const ShapeError& e) {
        return e.what();
    }
    return "no error";
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "9"},    {"SLURM_STEP_NUM_TASKS", "16"},
                          {"SLURM_LOCALID", "1"},   {"SLURM_STEP_NODELIST", "gpu[003-004]"},
                          {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "prterun-node-1234@1"}};

Variables with(Variables v, const Variables& more) {
    for (const auto& [name, value] : more) v[name] = value;
    return v;
}
Variables without(Variables v, const char* name) {
    v.erase(name);
    return v;
}

void expect_place(const Variables& variables, const LocalRank& want) {
    const auto found = find(variables);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, want.rank);
    EXPECT_EQ(found->size, want.size);
    EXPECT_EQ(found->local_rank, want.local_rank);
    EXPECT_EQ(found->host, want.host);
    EXPECT_EQ(found->port, want.port);
    EXPECT_EQ(found->job, want.job);
}

TEST(LocalRank, Torchrun) {
    expect_place(kTorchrun, {5, 8, 1, "node7", 29500, ""});
    // Its own store listens at MASTER_PORT.
    const Variables agent = with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                             {"TORCHELASTIC_RUN_ID", "abc"},
                                             {"TORCHELASTIC_RESTART_COUNT", "2"}});
    expect_place(agent, {5, 8, 1, "node7", 29501, "abc.2"});
    expect_place(with(agent, {{"MASTER_PORT", "65535"}}), {5, 8, 1, "node7", 65534, "abc.2"});
    expect_place(with(agent, {{"MOK_PORT", "1234"}}), {5, 8, 1, "node7", 1234, "abc.2"});
    // Under Slurm and MPI as well, torchrun's are the inner ones.
    expect_place(with(with(kSlurm, kOpenMpi), kTorchrun), {5, 8, 1, "node7", 29500, ""});
}

TEST(LocalRank, Slurm) {
    const auto found = find(kSlurm);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->host, "gpu003");
    EXPECT_EQ(found->job, "4711.2");
    EXPECT_GE(found->port, 20000);
    EXPECT_LT(found->port, 30000);
    EXPECT_EQ(found->rank, 9);
    EXPECT_EQ(found->local_rank, 1);
    EXPECT_NE(find(with(kSlurm, {{"SLURM_JOB_ID", "4712"}}))->port, found->port);
    for (const auto& [list, first] : Variables{{"a", "a"},
                                               {"a,b", "a"},
                                               {"a1,b[2-3]", "a1"},
                                               {"b[2-3],a1", "b2"},
                                               {"b[07,09-11]", "b07"},
                                               {"b[12]-x,c", "b12-x"}}) {
        EXPECT_EQ(find(with(kSlurm, {{"SLURM_STEP_NODELIST", list}}))->host, first) << list;
    }
    // A batch script has a SLURM_PROCID, but is no step.
    EXPECT_FALSE(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
    // srun's own PMI variables change nothing.
    const Variables pmi2 = with(kSlurm, {{"PMI_RANK", "9"}, {"PMI_SIZE", "16"}});
    EXPECT_EQ(find(pmi2)->host, "gpu003");
}

TEST(LocalRank, Mpirun) {
    const auto found = find(kOpenMpi);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->host, "localhost");
    EXPECT_EQ(found->job, "prterun-node-1234@1");
    EXPECT_EQ(found->rank, 1);
    // Inside a Slurm job: mpirun's ranks, not those of its daemons.
    EXPECT_EQ(find(with(kSlurm, kOpenMpi))->rank, 1);
    const Variables mpich = {{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},
                             {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"},
                             {"MASTER_ADDR", "head"},  {"MASTER_PORT", "777"}};
    expect_place(mpich, {3, 4, 1, "head", 777, ""});
    EXPECT_EQ(find(with(kSlurm, mpich))->rank, 3);
}

TEST(LocalRank, OneRankNeedsNoAddress) {
    expect_place({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}, {});
}

TEST(LocalRank, NoLauncher) {
    EXPECT_FALSE(find({}));
    EXPECT_FALSE(find({{"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}, {"LOCAL_RANK", "0"}}));
}

TEST(LocalRank, WhatIsMissing) {
    EXPECT_EQ(sentence({{"RANK", "1"}}),
              "torchrun's variables: RANK set, missing WORLD_SIZE, LOCAL_RANK");
    EXPECT_EQ(sentence(without(without(kTorchrun, "MASTER_ADDR"), "MASTER_PORT")),
              "torchrun's variables: missing MASTER_ADDR, MASTER_PORT");
    EXPECT_EQ(sentence(without(kSlurm, "SLURM_LOCALID")),
              "srun's variables: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, "
              "SLURM_JOB_ID, SLURM_STEP_ID set, missing SLURM_LOCALID");
    EXPECT_EQ(sentence(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})),
              "the launcher does not say where rank 0 runs; set MASTER_ADDR to its host, the same "
              "on all ranks");
    EXPECT_EQ(sentence(without(kOpenMpi, "PMIX_NAMESPACE")),
              "the launcher sets neither MASTER_PORT nor a job's name; set MOK_PORT to a free port "
              "of rank 0's host, the same on all ranks");
}

TEST(LocalRank, WhatContradicts) {
    EXPECT_EQ(sentence(with(kTorchrun, {{"RANK", "8"}})),
              "the launcher's rank: expected one below 8, found 8");
    EXPECT_EQ(sentence(with(kTorchrun, {{"RANK", "-1"}})),
              "the launcher's rank: expected one below 8, found -1");
    EXPECT_EQ(sentence(with(kTorchrun, {{"LOCAL_RANK", "8"}})),
              "the launcher's local rank: expected one below 8, found 8");
    EXPECT_EQ(sentence(with(kTorchrun, {{"WORLD_SIZE", "73"}})),
              "the launcher's ranks: expected 1 to 72, found 73");
    for (const char* text : {"", "x", "1x", " 1", "99999999999"}) {
        EXPECT_EQ(sentence(with(kTorchrun, {{"RANK", text}})),
                  std::string("RANK: expected a number, found '") + text + "'");
    }
    for (const char* port : {"0", "65536", "-3"}) {
        EXPECT_EQ(sentence(with(kTorchrun, {{"MASTER_PORT", port}})),
                  std::string("MASTER_PORT: expected 1 to 65535, found ") + port);
    }
    EXPECT_EQ(sentence(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[003"}})),
              "SLURM_STEP_NODELIST: expected a list of hosts, found 'gpu[003'");
}

TEST(LocalRank, ItsGpu) {
    EXPECT_EQ(gpu_of(0, 8), 0);
    EXPECT_EQ(gpu_of(7, 8), 7);
    EXPECT_EQ(gpu_of(5, 1), 0);  // the launcher shows each rank its own
    try {
        gpu_of(4, 4);
        FAIL();
    } catch (const ShapeError& e) {
        EXPECT_STREQ(e.what(), "GPUs: expected at least 5 for the ranks of this host, found 4");
    }
}

}  // namespace
}  // namespace mok::comm
