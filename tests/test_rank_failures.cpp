// Groups of real processes of which one fails, and strangers. Every wait ends, with a sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>

#include "comm/net/connection.h"
#include "launched_ranks.h"

namespace mok {
namespace {

using comm::Descriptor;
using testing::HasSubstr;
using testing::MatchesRegex;

int free_port() {
    return comm::port_of(comm::listen_at("127.0.0.1", 0));
}

// Runs a scenario of `size` ranks, `bad` being the one that fails; the others' results.
std::vector<ProcessResult> others(const std::string& scenario, int size, int bad,
                                  const std::string& timeout_s) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int port = free_port();
    for (int r = 0; r < size; ++r) {
        ranks.start(torchrun_variables(r, size, port), {scenario, timeout_s, std::to_string(bad)});
    }
    std::vector<ProcessResult> results;
    for (int r = 0; r < size; ++r) {
        if (r != bad) results.push_back(ranks.result(r));
    }
    return results;
}

// Every rank but `bad` says this, and says it within some seconds though the bound is a minute.
void expect_at_once(const std::string& scenario, int size, int bad, const std::string& sentence) {
    for (const ProcessResult& r : others(scenario, size, bad, "60")) {
        EXPECT_EQ(r.status, 3) << scenario;
        EXPECT_THAT(r.out, HasSubstr(" about " + std::to_string(bad) + " after "));
        EXPECT_THAT(r.out, HasSubstr(": " + sentence + "\n"));
        EXPECT_THAT(r.out, Not(MatchesRegex(".*after [2-9][0-9]\\..*")));
    }
}

TEST(RankFailures, ADeadRankIsNamedAtOnce) {
    for (const auto& [size, bad] : {std::pair(2, 1), {2, 0}, {4, 2}, {5, 0}}) {
        const std::string sentence =
            "rank " + std::to_string(bad) + " is lost: its connection closed; the group is broken";
        expect_at_once("killed", size, bad, sentence);
        expect_at_once("killed_computing", size, bad, sentence);
        expect_at_once("exits", size, bad, sentence);
    }
}

TEST(RankFailures, ARankThatGivesUpSaysWhy) {
    for (const int bad : {0, 2}) {
        expect_at_once("abandons", 3, bad,
                       "rank " + std::to_string(bad) + " gave up: a test's reason");
    }
}

TEST(RankFailures, ARankThatLeavesIsNamedAtOnce) {
    for (const int bad : {0, 1}) {
        for (const ProcessResult& r : others("leaves", 3, bad, "60")) {
            EXPECT_EQ(r.status, 3);
            EXPECT_THAT(r.out, HasSubstr("rank " + std::to_string(bad) +
                                         " has left the group and does not come to the second "
                                         "barrier, where rank "));
        }
    }
}

TEST(RankFailures, RanksAtDifferentBarriers) {
    for (const ProcessResult& r : others("elsewhere", 2, 1, "60")) {
        EXPECT_EQ(r.status, 3);
        EXPECT_THAT(r.out, HasSubstr("second barrier"));
        EXPECT_THAT(r.out, HasSubstr("wrong barrier"));
    }
}

TEST(RankFailures, ALateRankIsNamedWhenTheBoundExpires) {
    for (const int bad : {0, 2}) {
        for (const ProcessResult& r : others("late", 3, bad, "1.5")) {
            EXPECT_EQ(r.status, 3);
            EXPECT_THAT(r.out,
                        MatchesRegex("TimeoutError of [0-2] about " + std::to_string(bad) +
                                     " after .*: rank [0-2] waited [0-9.]+ s at the second "
                                     "barrier and rank " +
                                     std::to_string(bad) + " did not come; the group is broken\n"));
        }
    }
}

// With rank 0 stopped nobody keeps the bounds but the ranks themselves.
TEST(RankFailures, AStoppedRank0) {
    for (const ProcessResult& r : others("stopped", 2, 0, "1")) {
        EXPECT_EQ(r.status, 3);
        EXPECT_THAT(r.out, HasSubstr("at the second barrier and rank 0, which keeps the group, "
                                     "did not answer; the group is broken"));
    }
}

TEST(RankFailures, ARankThatIsNeverStarted) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int port = free_port();
    for (const int r : {0, 2}) ranks.start(torchrun_variables(r, 3, port), {"exchange", "1.5"});
    for (const int index : {0, 1}) {
        const ProcessResult r = ranks.result(index);
        EXPECT_EQ(r.status, 3);
        EXPECT_THAT(r.out, HasSubstr(" s at the rendezvous and rank 1 did not come; the group"));
    }
    const int alone = ranks.start(torchrun_variables(1, 2, free_port()), {"exchange", "1.5"});
    const ProcessResult r = ranks.result(alone);
    EXPECT_EQ(r.status, 3);
    EXPECT_THAT(r.out, MatchesRegex("TimeoutError of 1 about 0 after .*: rank 1 waited 1\\.[0-9] s "
                                    "for rank 0 at 127\\.0\\.0\\.1:[0-9]+ and it did not come "
                                    "\\(Connection refused\\)\n"));
}

TEST(RankFailures, ThePortIsTaken) {
    const Descriptor taken = comm::listen_at("127.0.0.1", 0);
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const ProcessResult r =
        ranks.result(ranks.start(torchrun_variables(0, 2, comm::port_of(taken)), {"late", "5"}));
    EXPECT_EQ(r.status, 4);
    EXPECT_THAT(r.out, HasSubstr("rank 0 cannot listen at 127.0.0.1:"));
    EXPECT_THAT(r.out, HasSubstr("Address already in use; MOK_PORT"));
}

// ---- Who does not belong to the group ---------------------------------------------------------

TEST(Strangers, ARankThatDoesNotFitIsRefusedAndTheGroupGoesOn) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int port = free_port();
    std::vector<int> members;
    for (int r = 0; r < 2; ++r) {
        members.push_back(ranks.start(torchrun_variables(r, 2, port), {"lingers", "60"}));
    }
    Variables other_job = torchrun_variables(1, 2, port);
    other_job["MOK_JOB"] = "another";
    const int job = ranks.start(other_job, {"exchange", "60"});
    const int size = ranks.start(torchrun_variables(2, 3, port), {"exchange", "60"});
    EXPECT_THAT(ranks.result(job).out,
                HasSubstr("the group belongs to job '', found job 'another'"));
    EXPECT_THAT(ranks.result(size).out,
                HasSubstr("rank 0 has a group of 2 ranks, rank 2 one of 3"));
    EXPECT_EQ(ranks.result(size).status, 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const ProcessResult late =
        ranks.result(ranks.start(torchrun_variables(1, 2, port), {"exchange", "60"}));
    EXPECT_EQ(late.status, 4);
    EXPECT_THAT(late.out,
                MatchesRegex("Error: rank 1: refused by rank 0 at 127\\.0\\.0\\.1:[0-9]+: "
                             "rank 1 has joined already\n"));
    for (const int index : members) EXPECT_EQ(ranks.result(index).status, 0);
}

Descriptor connect(int port) {
    std::string reason;
    Descriptor socket = comm::connect_to(
        "127.0.0.1", port, std::chrono::steady_clock::now() + std::chrono::seconds(30), reason);
    EXPECT_GE(socket.fd(), 0) << reason;
    return socket;
}

void send_bytes(const Descriptor& to, const comm::Bytes& bytes) {
    send(to.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

TEST(Strangers, AnotherVersionIsRefused) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int port = free_port();
    ranks.start(torchrun_variables(0, 2, port), {"exchange", "60"});
    comm::Connection link(connect(port), 1024);
    link.send(comm::MessageKind::Hello, comm::BodyWriter().u32(77));
    std::optional<comm::Message> reply;
    for (int i = 0; i < 1000 && !reply; ++i) {
        pollfd polled{link.fd(), POLLIN, 0};
        link.transfer();
        poll(&polled, 1, 10);
        reply = link.next();
    }
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kind, comm::MessageKind::Refusal);
    EXPECT_EQ(comm::BodyReader(reply->body).text(),
              "the group speaks version 1 of its protocol, found version 77");
}

// Bytes of all sorts before and while the group runs: it neither breaks nor waits for them.
TEST(Strangers, BytesThatAreNoMessageHarmNobody) {
    LaunchedRanks ranks(MOK_RANK_PROGRAM);
    const int port = free_port();
    std::vector<int> members = {ranks.start(torchrun_variables(0, 3, port), {"lingers", "60"})};
    std::vector<Descriptor> open;
    const auto disturb = [&] {
        std::mt19937 random(5);
        for (int i = 0; i < 40; ++i) {
            comm::Bytes bytes(i * 37);
            for (std::byte& b : bytes) b = static_cast<std::byte>(random());
            open.push_back(connect(port));
            send_bytes(open.back(), bytes);
        }
        // A header that promises 2^60 bytes; a Hello without an end; an Arrival of nobody; a
        // Hello of a rank below zero.
        comm::Bytes hello = comm::encoded(comm::MessageKind::Hello,
                                          comm::BodyWriter().u32(1).i32(-5).i32(3).text(""));
        comm::Bytes huge(hello.begin(), hello.begin() + 16), cut(hello.begin(), hello.end() - 3);
        huge[15] = std::byte{16};
        for (const comm::Bytes& bytes :
             {huge, cut, hello, comm::encoded(comm::MessageKind::Arrival, {}),
              comm::encoded(comm::MessageKind::Broken, comm::BodyWriter().i32(0).text("x")),
              comm::encoded(comm::MessageKind::Hello, {})}) {
            open.push_back(connect(port));
            send_bytes(open.back(), bytes);
        }
        for (int i = 0; i < 80; ++i) open.push_back(connect(port));  // silent
    };
    disturb();
    for (int r = 1; r < 3; ++r) {
        members.push_back(ranks.start(torchrun_variables(r, 3, port), {"lingers", "60"}));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    disturb();
    for (const int index : members) {
        const ProcessResult r = ranks.result(index);
        EXPECT_EQ(r.status, 0) << r.out;
        EXPECT_EQ(r.err, "");
    }
}

}  // namespace
}  // namespace mok
