// Groups of real processes that behave: launchers' variables, exchanges, spawning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/net/socket.h"
#include "comm/rank_processes.h"
#include "launched_ranks.h"
#include "openmok/error.h"

namespace mok {
namespace {

using testing::HasSubstr;

int free_port() {
    return comm::port_of(comm::listen_at("127.0.0.1", 0));
}

std::string ok_line(int rank, int size) {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size) + ", local rank " +
           std::to_string(rank) + ": ok\n";
}

// Starts a rank per set of variables, the last one first, and expects that all end well.
void expect_exchange(const std::vector<Variables>& variables) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int size = static_cast<int>(variables.size());
    for (int r = size - 1; r >= 0; --r) ranks.start(variables[r], {"exchange", "60"});
    for (int r = 0; r < size; ++r) {
        const ProcessResult result = ranks.result(size - 1 - r);
        EXPECT_EQ(result.status, 0);
        EXPECT_EQ(result.out, ok_line(r, size));
        EXPECT_EQ(result.err, "");
    }
}

TEST(RankProcesses, ExchangeUnderTorchrun) {
    for (const int size : {1, 2, 3, 5}) {
        std::vector<Variables> variables;
        const int port = free_port();
        for (int r = 0; r < size; ++r) variables.push_back(torchrun_variables(r, size, port));
        expect_exchange(variables);
    }
}

TEST(RankProcesses, RowsOfATraining) {
    for (const int size : {1, 2, 3, 8}) {
        LaunchedRanks ranks(MOK_RANK_PROGRAM);
        const int port = free_port();
        for (int r = 0; r < size; ++r) {
            ranks.start(torchrun_variables(r, size, port), {"exchange_rows", "60"});
        }
        for (int r = 0; r < size; ++r) {
            const ProcessResult result = ranks.result(r);
            EXPECT_EQ(result.status, 0) << result.out;
            EXPECT_EQ(result.out, ok_line(r, size));
        }
    }
}

TEST(RankProcesses, ExchangeUnderMpirun) {
    std::vector<Variables> variables;
    const std::string job = "test-" + std::to_string(getpid());
    for (const char* rank : {"0", "1", "2"}) {
        variables.push_back({{"OMPI_COMM_WORLD_RANK", rank},
                             {"OMPI_COMM_WORLD_SIZE", "3"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                             {"PMIX_NAMESPACE", job}});
    }
    expect_exchange(variables);
}

TEST(RankProcesses, ExchangeUnderSrun) {
    std::vector<Variables> variables;
    for (const char* rank : {"0", "1"}) {
        variables.push_back({{"SLURM_PROCID", rank},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_LOCALID", rank},
                             {"SLURM_STEP_NODELIST", "localhost"},
                             {"SLURM_JOB_ID", std::to_string(getpid())},
                             {"SLURM_STEP_ID", "0"}});
    }
    expect_exchange(variables);
}

TEST(RankProcesses, LateWarningNamesTheRank) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int port = free_port();
    for (int r = 0; r < 3; ++r) ranks.start(torchrun_variables(r, 3, port), {"slow", "60", "1"});
    for (int r = 0; r < 3; ++r) {
        const ProcessResult result = ranks.result(r);
        EXPECT_EQ(result.status, 0);
        const std::string warning = "mok: rank " + std::to_string(r) +
                                    " has waited 0 s at the barrier of a test for rank 1\n";
        // The rendezvous may have been slow as well.
        if (r == 1) continue;
        EXPECT_THAT(result.err, HasSubstr(warning));
    }
}

// ---- Spawning ---------------------------------------------------------------------------------

ProcessResult spawn(const std::vector<std::string>& arguments) {
    LaunchedRanks program(MOK_RANK_PROGRAM);
    std::vector<std::string> all = {"spawn"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    // What a spawned group must not take over from outside.
    const int index = program.start({{"MOK_PORT", "1"}, {"MASTER_ADDR", "no.such.host"}}, all);
    return program.result(index);
}

TEST(Spawn, RunsAGroupAndShowsRank0) {
    for (const int size : {1, 2, 3, 4, 5}) {
        const ProcessResult r = spawn({std::to_string(size), "exchange", "60"});
        EXPECT_EQ(r.status, 0) << r.err;
        EXPECT_EQ(r.out, ok_line(0, size));
        EXPECT_EQ(r.err, "");
    }
}

TEST(Spawn, ADeadRankEndsTheGroup) {
    const ProcessResult r = spawn({"3", "killed", "60", "2"});
    EXPECT_EQ(r.status, 128 + SIGKILL);
    EXPECT_THAT(r.err, HasSubstr("mok: rank 2 was ended by signal 9 (Killed)\n"));
    const std::string sentence = "rank 2 is lost: its connection closed; the group is broken\n";
    EXPECT_TRUE(r.err.starts_with(sentence) || r.err.find('\n' + sentence) != std::string::npos)
        << r.err;
    EXPECT_THAT(r.err, HasSubstr("rank 1: " + sentence));
}

TEST(Spawn, TheWorstExitStatus) {
    EXPECT_EQ(spawn({"3", "exits", "60", "1"}).status, 7);
    EXPECT_EQ(spawn({"2", "exits", "60", "0"}).status, 7);
}

// The others end with 3, for they have waited for it.
TEST(Spawn, TheStatusOfTheRankThatFailed) {
    const ProcessResult r = spawn({"3", "refuses", "60", "1"});
    EXPECT_EQ(r.status, 2);
    EXPECT_THAT(r.err, HasSubstr("rank 2: rank 1 "));
}

// The rank that sleeps for a minute is ended: the bound is the grace, twice, not its minute.
TEST(Spawn, ARankThatDoesNotEndIsEnded) {
    const auto start = std::chrono::steady_clock::now();
    const ProcessResult r = spawn({"2", "late", "0.5", "1"});
    EXPECT_EQ(r.status, 3);
    EXPECT_THAT(r.err, HasSubstr("s at the second barrier and rank 1 did not come; the group"));
    EXPECT_THAT(r.err, HasSubstr("mok: rank 1 did not end by itself and is ended\n"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Spawn, WhatCannotBeStarted) {
    comm::SpawnOptions options;
    options.command = {"/no/such/program"};
    EXPECT_THROW(comm::run_rank_processes(options), Error);
}

TEST(Spawn, RanksBeyondTheGpus) {
    comm::demand_gpu_per_rank(2, 2);
    try {
        comm::demand_gpu_per_rank(3, 2);
        FAIL();
    } catch (const ShapeError& e) {
        EXPECT_STREQ(e.what(), "ranks: expected at most 2, one per GPU of this machine, found 3");
    }
}

}  // namespace
}  // namespace mok
