// How long the host waits for a stream, on a clock and a stream of the test's own.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "layer/stream_wait.h"

namespace mok::layer {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr WaitDuration kNever = WaitDuration::max();

// A look takes a microsecond.
struct Simulated {
    WaitDuration ends_after = kNever, fails_after = kNever;

    WaitDuration time{0};
    int num_looks = 0, num_attended = 0;
    std::optional<WaitDuration> first_sleep = std::nullopt;

    WaitOutcome wait(const WaitBounds& bounds) {
        const StreamLook look{[this] {
                                  time += microseconds(1);
                                  ++num_looks;
                                  return time >= ends_after;
                              },
                              [this] { return time >= fails_after; }, [this] { ++num_attended; }};
        return wait_for_stream(look, bounds,
                               {[this] { return WaitTime(time); },
                                [this](WaitDuration pause) {
                                    if (!first_sleep) first_sleep = time;
                                    time += pause;
                                }});
    }
};

double seconds_of(WaitDuration d) {
    return std::chrono::duration<double>(d).count();
}

TEST(StreamWait, ASleepOnlyAfterTwoMilliseconds) {
    Simulated short_wait{.ends_after = microseconds(1999)};
    EXPECT_EQ(short_wait.wait(wait_bounds(seconds(600))).end, WaitEnd::Ended);
    EXPECT_FALSE(short_wait.first_sleep);
    EXPECT_EQ(short_wait.num_looks, 1999);
    EXPECT_EQ(short_wait.num_attended, 1998);

    Simulated long_wait{.ends_after = seconds(1)};
    EXPECT_EQ(long_wait.wait(wait_bounds(seconds(600))).end, WaitEnd::Ended);
    EXPECT_EQ(long_wait.first_sleep, microseconds(2001));
    EXPECT_LT(long_wait.num_looks, 2001 + 10'000);
    EXPECT_GT(long_wait.num_looks, 2001 + 9'800);
    EXPECT_LT(long_wait.time, seconds(1) + microseconds(200));
}

TEST(StreamWait, AKernelThatWindsDownAfterAFaultIsWaitedFor) {
    Simulated s{.ends_after = seconds(9), .fails_after = seconds(2)};
    EXPECT_EQ(s.wait({seconds(10), seconds(60)}).end, WaitEnd::Ended);
}

TEST(StreamWait, AKernelThatDoesNotEndAfterAFaultIsGivenUp) {
    for (const WaitDuration fault : {WaitDuration(0), WaitDuration(seconds(7))}) {
        Simulated s{.fails_after = fault};
        const WaitOutcome outcome = s.wait({seconds(10), seconds(60)});
        EXPECT_EQ(outcome.end, WaitEnd::NotAfterFault);
        EXPECT_NEAR(outcome.waited.count(), 10.0, 0.001);
        EXPECT_NEAR(seconds_of(s.time), 10.0 + seconds_of(fault), 0.001);
    }
}

TEST(StreamWait, AKernelThatDoesNotEndAtAllIsGivenUp) {
    Simulated s;
    const WaitOutcome outcome = s.wait({seconds(10), seconds(60)});
    EXPECT_EQ(outcome.end, WaitEnd::NotInTime);
    EXPECT_NEAR(outcome.waited.count(), 60.0, 0.001);
    // A fault shortly before that has its time no more.
    Simulated late{.fails_after = seconds(55)};
    EXPECT_EQ(late.wait({seconds(10), seconds(60)}).end, WaitEnd::NotInTime);
}

TEST(StreamWait, AStreamThatEndsWithAnErrorThrowsIt) {
    const StreamLook look{[]() -> bool { throw std::runtime_error("lost"); }, [] { return false; },
                          [] {}};
    EXPECT_THROW(wait_for_stream(look, wait_bounds(seconds(1))), std::runtime_error);
}

TEST(StreamWait, BoundsOfAGroup) {
    EXPECT_EQ(wait_bounds(seconds(600)).in_all, seconds(2400));
    EXPECT_EQ(wait_bounds(milliseconds(50)).in_all, seconds(60));
    EXPECT_EQ(wait_bounds(seconds(1'000'000)).in_all, seconds(4'000'000));
    EXPECT_EQ(wait_bounds(milliseconds(50)).after_fault, seconds(10));
    EXPECT_EQ(wait_bounds(seconds(600)).after_fault, seconds(10));
}

// The real clock: the wait ends soon after the stream.
TEST(StreamWait, OnTheSteadyClock) {
    const WaitTime start = std::chrono::steady_clock::now();
    const StreamLook look{
        [&] { return std::chrono::steady_clock::now() - start > milliseconds(20); },
        [] { return false; }, [] {}};
    const WaitOutcome outcome = wait_for_stream(look, wait_bounds(seconds(600)));
    EXPECT_EQ(outcome.end, WaitEnd::Ended);
    EXPECT_GE(outcome.waited.count(), 0.02);
}

}  // namespace
}  // namespace mok::layer
