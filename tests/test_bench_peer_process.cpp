// Sanitizers: asan
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "cli/bench/peer_process.h"
#include "mok_process.h"
#include "temporary_folder.h"

// A peer that answers, and every way in which it does not. The fake peer is tests/fake_peer.py.
namespace mok::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;
using Seconds = PeerProcess::Seconds;

const std::string kScript = MOK_SOURCE_DIR "/tests/fake_peer.py";
constexpr Seconds kBound{20.0};

std::vector<std::string> fake_peer(std::vector<std::string> more = {}) {
    std::vector<std::string> command = {"python3", kScript};
    command.insert(command.end(), more.begin(), more.end());
    return command;
}

// The sentence of the PeerError that a request ends with.
std::string refusal(PeerProcess& peer, const Json& request, Seconds bound = kBound) {
    try {
        return "answered " + peer.ask(request, bound).dump();
    } catch (const PeerError& e) {
        return e.what();
    }
}

// Gone, or no longer running: nobody may have waited for it in this machine's first process.
bool is_running(int64_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    return (file >> number >> name >> state) && state != "Z" && state != "X";
}

// A signal takes a moment to end a process that is not this one's child.
bool has_ended(int64_t pid) {
    for (int i = 0; i < 500 && is_running(pid); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return !is_running(pid);
}

TEST(PeerProcess, AnswersRequestAfterRequest) {
    PeerProcess peer(fake_peer());
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(peer.ask({{"n", i}}, kBound), Json({{"echo", {{"n", i}}}}));
    }
}

TEST(PeerProcess, PassesOnThePeersOwnErrorAndGoesOn) {
    PeerProcess peer(fake_peer());
    EXPECT_THAT(refusal(peer, {{"run", "x"}, {"pass", "forward"}}), EndsWith(": x has no forward"));
    EXPECT_EQ(peer.ask({{"a", 1}}, kBound)["echo"]["a"], 1);
}

TEST(PeerProcess, SaysHowThePeerEnded) {
    PeerProcess exits(fake_peer());
    const std::string sentence = refusal(exits, {{"do", "exit"}});
    EXPECT_EQ(sentence, "peer python3 " + kScript +
                            ": ended with exit status 3 before it answered; its last words: the "
                            "reason, in words");
    EXPECT_EQ(refusal(exits, {{"a", 1}}), sentence);

    PeerProcess killed(fake_peer());
    EXPECT_THAT(refusal(killed, {{"do", "signal"}}), HasSubstr("was ended by signal 15 "));
    PeerProcess closed(fake_peer());
    EXPECT_THAT(refusal(closed, {{"do", "close"}}), HasSubstr("closed its output"));
}

TEST(PeerProcess, BoundsItsWait) {
    PeerProcess peer(fake_peer());
    const int64_t child = peer.ask({{"do", "child"}}, kBound)["child"];
    const auto begin = std::chrono::steady_clock::now();
    const std::string sentence = refusal(peer, {{"do", "sleep"}}, Seconds(0.3));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_THAT(sentence, EndsWith(": no answer within 0.3 s"));
    EXPECT_EQ(refusal(peer, {{"a", 1}}), sentence);
    EXPECT_TRUE(has_ended(child));  // the whole group was ended
}

TEST(PeerProcess, RefusesWhatIsNoObject) {
    for (const std::string line : {"[1]", "{\"a\": ", "12", "hello"}) {
        PeerProcess peer(fake_peer());
        EXPECT_THAT(refusal(peer, {{"print", line}}),
                    EndsWith(": expected a JSON object as answer, found \"" + line + "\""));
        EXPECT_THAT(refusal(peer, {{"a", 1}}), HasSubstr(line));
    }
    PeerProcess endless(fake_peer());
    EXPECT_THAT(refusal(endless, {{"do", "endless"}}), HasSubstr("bytes without an end"));
}

TEST(PeerProcess, TakesLongAnswersAndMuchChatter) {
    PeerProcess peer(fake_peer());
    EXPECT_EQ(peer.ask({{"do", "long"}}, kBound)["text"].get<std::string>().size(), 300000u);
    EXPECT_EQ(peer.ask({{"do", "chatter"}}, kBound)["said"], 1000000);
    const std::string text(500000, 'z');
    EXPECT_EQ(peer.ask({{"a", text}}, kBound)["echo"]["a"], text);
}

TEST(PeerProcess, SaysWhatCannotBeStarted) {
    try {
        PeerProcess peer({"/nowhere/python3", "peer.py"});
        FAIL() << "started";
    } catch (const PeerError& e) {
        EXPECT_STREQ(e.what(),
                     "peer /nowhere/python3 peer.py: cannot be started: "
                     "No such file or directory");
    }
    PeerProcess peer({"python3", "/nowhere/peer.py"});
    EXPECT_THAT(refusal(peer, {{"a", 1}}), testing::AllOf(HasSubstr("ended with exit status 2"),
                                                          HasSubstr("No such file or directory")));
}

TEST(PeerProcess, EndsWithItsObject) {
    const TemporaryFolder folder;
    const std::string log = (folder.path() / "log").string();
    int64_t pid = 0, child = 0;
    {
        PeerProcess peer(fake_peer({"--log", log}));
        const Json answer = peer.ask({{"do", "child"}}, kBound);
        pid = answer["pid"];
        child = answer["child"];
        EXPECT_TRUE(is_running(pid));
    }
    EXPECT_EQ(read_bytes(log), "end\n");  // by the end of its input, in peace
    EXPECT_TRUE(has_ended(pid));
    EXPECT_TRUE(has_ended(child));
}

// The real peer program where there is no torch: a sentence, not a stack of calls. Without site
// packages Python finds none anywhere.
TEST(PeerProcess, RealPeerWithoutTorch) {
    PeerProcess peer({"python3", "-S", MOK_SOURCE_DIR "/bench/peers/peer.py"});
    EXPECT_THAT(refusal(peer, {{"run", "torch+triton"}, {"pass", "forward"}}),
                EndsWith("ModuleNotFoundError: No module named 'torch'"));
    EXPECT_THAT(refusal(peer, Json::array({1})), HasSubstr("request: expected a JSON object"));
    EXPECT_EQ(peer.ask({{"quit", true}}, kBound), Json::object());
    EXPECT_THAT(refusal(peer, {{"a", 1}}), HasSubstr("ended with exit status 0"));
}

}  // namespace
}  // namespace mok::cli
