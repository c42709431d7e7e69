// The group of processes inside one process: its threads and its messages.
// Sanitizers: asan tsan
#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <thread>

#include "comm/process_group.h"
#include "openmok/group.h"

namespace mok::comm {
namespace {

using Seconds = std::chrono::duration<double>;

int free_port() {
    return port_of(listen_at("127.0.0.1", 0));
}

// Runs body(group, rank) in a thread per rank; what each threw, "" for nothing.
std::vector<std::string> run_group(int size, double timeout_s,
                                   const std::function<void(ProcessGroup&, int)>& body) {
    const int port = free_port();
    std::vector<std::string> ends(size);
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
        threads.emplace_back([&, r] {
            try {
                const GroupOptions options{.timeout = Seconds(timeout_s)};
                ProcessGroup group({r, size, r, "127.0.0.1", port, "job"}, options);
                body(group, r);
            } catch (const Error& e) {
                ends[r] = e.what();
            }
        });
    }
    threads.clear();
    return ends;
}

std::span<const std::byte> bytes_of(const int& value) {
    return std::as_bytes(std::span(&value, 1));
}

TEST(ProcessGroup, EveryRankGetsEveryRanksBytesInOrder) {
    for (const int size : {2, 3, 8}) {
        const auto ends = run_group(size, 60, [&](ProcessGroup& group, int rank) {
            for (int round = 0; round < 30; ++round) {
                const int mine = 1000 * rank + round;
                const auto all = group.exchange_bytes(rank, bytes_of(mine), "exchange");
                ASSERT_EQ(static_cast<int>(all.size()), size);
                for (int r = 0; r < size; ++r) {
                    int got = -1;
                    ASSERT_EQ(all[r].size(), sizeof(got));
                    std::memcpy(&got, all[r].data(), sizeof(got));
                    EXPECT_EQ(got, 1000 * r + round);
                }
                group.barrier(rank, "barrier");
                EXPECT_FALSE(group.broken());
            }
        });
        for (const std::string& end : ends) EXPECT_EQ(end, "");
    }
}

TEST(ProcessGroup, TheFirstSentenceOfABrokenGroupStays) {
    const auto ends = run_group(3, 60, [](ProcessGroup& group, int rank) {
        group.barrier(rank, "barrier");
        if (rank == 1) {
            group.break_group("the first sentence", 1);
            group.break_group("the second sentence", 2);
        }
        while (!group.broken()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_THROW(group.throw_if_broken(rank), TimeoutError);
        group.barrier(rank, "barrier");
    });
    for (const std::string& end : ends) EXPECT_EQ(end, "the first sentence");
}

TEST(ProcessGroup, MoreBytesThanAnExchangeTakes) {
    const auto ends = run_group(2, 60, [](ProcessGroup& group, int rank) {
        group.exchange_bytes(rank, Bytes(kMaxExchangeBytes + 1), "exchange of windows");
    });
    for (const std::string& end : ends) {
        EXPECT_EQ(end,
                  "exchange of windows: expected at most 1048576 bytes of a rank, found 1048577");
    }
}

// An address of one process means nothing in another.
TEST(ProcessGroup, PointersAreRefused) {
    const auto ends = run_group(2, 60, [](ProcessGroup& group, int rank) {
        group.exchange(rank, &rank, "exchange of windows", [](const auto&) { FAIL(); });
    });
    for (const std::string& end : ends) {
        EXPECT_EQ(end, "exchange of windows: expected ranks of one process, found processes");
    }
}

TEST(ProcessGroup, AGroupThatIsNotCompleteInTime) {
    const int port = free_port();
    try {
        ProcessGroup({0, 2, 0, "127.0.0.1", port, ""}, {.timeout = Seconds(0.3)});
        FAIL();
    } catch (const TimeoutError& e) {
        EXPECT_EQ(std::string(e.what()).substr(0, 13), "rank 0 waited");
        EXPECT_NE(std::string(e.what()).find("at the rendezvous and rank 1 did not come"),
                  std::string::npos);
        EXPECT_EQ(e.peer, 1);
    }
    // The port is free again.
    EXPECT_EQ(port_of(listen_at("127.0.0.1", port)), port);
}

// ---- Groups that the caller brings together ---------------------------------------------------

TEST(Connect, RanksMeetWhereTheFirstListens) {
    const MeetingPoint point = MeetingPoint::listen("127.0.0.1");
    EXPECT_GT(point.port(), 0);
    const GroupOptions options{.timeout = Seconds(60)};
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r) {
        threads.emplace_back([&, r] {
            const MeetingPoint other("127.0.0.1", point.port());
            const Group group =
                Group::connect(r == 0 ? point : other, {r, 3, 2 - r, "job"}, options);
            EXPECT_EQ(group.rank(), r);
            EXPECT_EQ(group.size(), 3);
            EXPECT_EQ(group.local_rank(), 2 - r);
            const auto all = group.state().exchange_bytes(r, bytes_of(r), "exchange");
            for (int from = 0; from < 3; ++from) {
                int got = -1;
                std::memcpy(&got, all[from].data(), sizeof(got));
                EXPECT_EQ(got, from);
            }
        });
    }
}

// The same process in two groups at once, with another rank in each.
TEST(Connect, GroupsBesideEachOther) {
    const GroupOptions options{.timeout = Seconds(60)};
    const MeetingPoint first = MeetingPoint::listen("localhost");
    const MeetingPoint second = MeetingPoint::listen("localhost");
    EXPECT_NE(first.port(), second.port());
    std::jthread one([&] { Group::connect({"localhost", first.port()}, {1, 2, 1, "a"}, options); });
    std::jthread two([&] {
        Group::connect({"localhost", second.port()}, {1, 2, 1, "b"}, options);
    });
    const Group a = Group::connect(first, {0, 2, 0, "a"}, options);
    const Group b = Group::connect(second, {0, 2, 0, "b"}, options);
    EXPECT_EQ(a.size() + b.size(), 4);
}

TEST(Connect, ARankOfAnotherJobIsRefused) {
    const GroupOptions options{.timeout = Seconds(2)};
    const MeetingPoint point = MeetingPoint::listen("127.0.0.1");
    std::jthread stranger([&] {
        EXPECT_THROW(Group::connect({"127.0.0.1", point.port()}, {1, 2, 1, "b"}, options), Error);
    });
    EXPECT_THROW(Group::connect(point, {0, 2, 0, "a"}, options), TimeoutError);
}

TEST(Connect, SeatsAndPortsThatCannotBe) {
    const auto sentence = [](const Seat& seat, int port) -> std::string {
        try {
            Group::connect({"127.0.0.1", port}, seat);
        } catch (const ShapeError& e) {
            return e.what();
        }
        return "no error";
    };
    EXPECT_EQ(sentence({2, 2, 0, ""}, 1), "the group's rank: expected one below 2, found 2");
    EXPECT_EQ(sentence({0, 73, 0, ""}, 1), "the group's ranks: expected 1 to 72, found 73");
    EXPECT_EQ(sentence({0, 2, -1, ""}, 1),
              "the group's local rank: expected one below 2, found -1");
    EXPECT_EQ(sentence({0, 1, 0, ""}, 70000),
              "the meeting point's port: expected 1 to 65535, found 70000");
    EXPECT_EQ(Group::connect({"127.0.0.1", 1}, {0, 1, 0, ""}).size(), 1);
}

// ---- Messages ---------------------------------------------------------------------------------

TEST(Message, ComesOutAsItWentInHoweverItIsCut) {
    const Bytes blob = {std::byte{1}, std::byte{0}, std::byte{255}};
    Bytes stream = encoded(MessageKind::Broken, BodyWriter().i32(-1).text("why"));
    const Bytes second = encoded(MessageKind::Gathered, BodyWriter().u64(1ull << 40).blob(blob));
    stream.insert(stream.end(), second.begin(), second.end());
    Bytes received;
    std::vector<Message> messages;
    for (const std::byte b : stream) {
        received.push_back(b);
        while (auto m = take_message(received, 64)) messages.push_back(std::move(*m));
    }
    EXPECT_TRUE(received.empty());
    ASSERT_EQ(messages.size(), 2u);
    BodyReader first(messages[0].body), last(messages[1].body);
    EXPECT_EQ(messages[0].kind, MessageKind::Broken);
    EXPECT_EQ(first.i32(), -1);
    EXPECT_EQ(first.text(), "why");
    EXPECT_EQ(messages[1].kind, MessageKind::Gathered);
    EXPECT_EQ(last.u64(), 1ull << 40);
    EXPECT_EQ(last.blob(), blob);
    EXPECT_THROW(last.u32(), BadMessage);
}

TEST(Message, NoBytesAreTooBad) {
    const Bytes good = encoded(MessageKind::Hello, BodyWriter().u32(1).i32(2).i32(3).text("job"));
    EXPECT_THROW(
        {
            Bytes stream = good;
            take_message(stream, 8);
        },
        BadMessage);
    std::mt19937 random(3);
    int refused = 0, taken = 0;
    for (int i = 0; i < 20000; ++i) {
        Bytes stream = good;
        stream.resize(random() % (good.size() + 8));
        const std::size_t changes = random() % 4;
        for (std::size_t c = 0; c < changes && !stream.empty(); ++c) {
            stream[random() % stream.size()] = static_cast<std::byte>(random());
        }
        try {
            const auto m = take_message(stream, 64);
            if (!m) continue;
            BodyReader body(m->body);
            body.u32(), body.i32(), body.i32(), body.text();
            ++taken;
        } catch (const BadMessage&) {
            ++refused;
        }
    }
    EXPECT_GT(refused, 1000);
    EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace mok::comm
