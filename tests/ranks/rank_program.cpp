// A program that tests start once per rank: `rank_program SCENARIO TIMEOUT_S [RANK]` joins the
// group of its environment and does what the scenario says; RANK is the one that misbehaves.
// `rank_program spawn R SCENARIO TIMEOUT_S [RANK]` starts itself R times.
//
// Prints one line a rank. Exit status: 0, 2 for a ShapeError, 3 for a TimeoutError, 4 for another
// Error.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "cli/train/exchange.h"
#include "comm/group_state.h"
#include "comm/rank_processes.h"

namespace {

using namespace mok;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}
void sleep_s(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// What rank r contributes in a round: sizes from nothing to the most there may be.
comm::Bytes contribution(int rank, int round) {
    const std::size_t sizes[] = {0, 1, 7, 4096, 100'000, comm::kMaxExchangeBytes};
    comm::Bytes bytes(sizes[(rank + round) % 6]);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(31 * rank + 7 * round + i);
    }
    return bytes;
}

void exchange(const Group& group, int) {
    for (int round = 0; round < 12; ++round) {
        const auto all = group.state().exchange_bytes(
            group.rank(), contribution(group.rank(), round), "exchange of a test");
        if (static_cast<int>(all.size()) != group.size()) throw Error("exchange: wrong size");
        for (int r = 0; r < group.size(); ++r) {
            if (all[r] != contribution(r, round)) throw Error("exchange: wrong bytes");
        }
        for (int i = 0; i < 20; ++i) group.state().barrier(group.rank(), "barrier of a test");
    }
}

// What rank 0, 1, .. of a training has written in its rows is on every rank afterwards.
void exchange_rows(const Group& group) {
    const train::Exchange exchange(group, train::Copies::OnePerRank);
    const int64_t num_rows = 7, width = 300'001;
    const std::vector<int64_t> rows = train::even_split(num_rows, group.size());
    std::vector<int32_t> wide(num_rows * width, -1), narrow(num_rows, -1), last(3, group.rank());
    int64_t row = 0;
    for (int r = 0; r < group.rank(); ++r) row += rows[r];
    for (const int64_t end = row + rows[group.rank()]; row < end; ++row) {
        narrow[row] = static_cast<int32_t>(row);
        for (int64_t i = 0; i < width; ++i) wide[row * width + i] = static_cast<int32_t>(row + i);
    }
    exchange.gather("rows of a test", rows, {train::bytes_of(wide), train::bytes_of(narrow)});
    for (int64_t i = 0; i < num_rows * width; ++i) {
        if (wide[i] != i / width + i % width) throw Error("rows: wrong wide ones");
        if (narrow[i / width] != i / width) throw Error("rows: wrong narrow ones");
    }
    exchange.pass_on("passing on of a test", group.size() - 1, {train::bytes_of(last)});
    if (last != std::vector<int32_t>(3, group.size() - 1)) throw Error("passing on: wrong numbers");
    if (!exchange.difference({"a 1", "b 2"}).empty()) throw Error("difference: found between none");
    const bool is_last = group.rank() == group.size() - 1;
    const std::string found = exchange.difference({"a 1", is_last ? "b 3" : "b 2"});
    const std::string expected = "rank " + std::to_string(group.size() - 1) +
                                 " differs from rank 0: expected b 2, found b 3";
    if (found != (group.size() == 1 ? "" : expected)) throw Error("difference: " + found);
}

// The others wait at a barrier to which rank `bad` does not come, for the reason given.
void meet_without(const Group& group, int bad, const std::function<void()>& reason) {
    group.state().barrier(group.rank(), "barrier of a test");
    if (group.rank() == bad) return reason();
    group.state().barrier(group.rank(), "second barrier");
}

// The others compute and look now and then whether the group is whole.
void compute_without(const Group& group, int bad) {
    group.state().barrier(group.rank(), "barrier of a test");
    if (group.rank() == bad) raise(SIGKILL);
    const auto start = Clock::now();
    while (!group.state().broken() && seconds_since(start) < 60) sleep_s(0.005);
    group.state().throw_if_broken(group.rank());
    throw Error("nobody noticed");
}

void run(const std::string& scenario, const Group& group, int bad) {
    const std::map<std::string, std::function<void()>> scenarios = {
        {"exchange", [&] { exchange(group, bad); }},
        {"exchange_rows", [&] { exchange_rows(group); }},
        {"late", [&] { meet_without(group, bad, [] { sleep_s(60); }); }},
        {"killed", [&] { meet_without(group, bad, [] { raise(SIGKILL); }); }},
        {"exits", [&] { meet_without(group, bad, [] { _exit(7); }); }},
        {"stopped", [&] { meet_without(group, bad, [] { raise(SIGSTOP); }); }},
        {"leaves", [&] { meet_without(group, bad, [] {}); }},
        {"refuses", [&] { meet_without(group, bad, [] { throw ShapeError("a test's reason"); }); }},
        {"abandons", [&] { meet_without(group, bad, [&] { group.abandon("a test's reason"); }); }},
        {"elsewhere",
         [&] {
             meet_without(group, bad,
                          [&] { group.state().barrier(group.rank(), "wrong barrier"); });
         }},
        {"killed_computing", [&] { compute_without(group, bad); }},
        {"slow",
         [&] {
             if (group.rank() == bad) sleep_s(0.6);
             group.state().barrier(group.rank(), "barrier of a test");
         }},
        {"lingers",
         [&] {
             sleep_s(3.0);
             exchange(group, bad);
         }},
    };
    scenarios.at(scenario)();
}

int run_rank(const std::string& scenario, double timeout_s, int bad) {
    const auto start = Clock::now();
    try {
        GroupOptions options{.timeout = std::chrono::duration<double>(timeout_s)};
        if (scenario == "slow") options.warn_after = std::chrono::milliseconds(100);
        const Group group = Group::from_environment(options);
        run(scenario, group, bad);
        std::printf("rank %d of %d, local rank %d: ok\n", group.rank(), group.size(),
                    group.local_rank());
        return 0;
    } catch (const TimeoutError& e) {
        std::printf("TimeoutError of %d about %d after %.1f s: %s\n", e.rank, e.peer,
                    seconds_since(start), e.what());
        std::fprintf(stderr, "%s\n", e.what());
        return 3;
    } catch (const ShapeError& e) {
        std::printf("ShapeError: %s\n", e.what());
        return 2;
    } catch (const Error& e) {
        std::printf("Error: %s\n", e.what());
        return 4;
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 3 && std::string(argv[1]) == "spawn") {
        comm::SpawnOptions options;
        options.num_ranks = std::atoi(argv[2]);
        options.command = {comm::own_program()};
        options.command.insert(options.command.end(), argv + 3, argv + argc);
        options.grace = std::chrono::seconds(1);
        options.consequence_status = 3;
        return comm::run_rank_processes(options);
    }
    if (argc < 3) return 64;
    return run_rank(argv[1], std::atof(argv[2]), argc > 3 ? std::atoi(argv[3]) : -1);
}
