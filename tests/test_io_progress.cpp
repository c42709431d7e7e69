#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cli/io/progress.h"

namespace mok::io {
namespace {

// A clock that the test turns and a screen that it reads.
struct Bench {
    double now_s = 100;
    std::string text;

    ProgressOutput output(bool is_terminal, int num_columns = 80) {
        return {[this](std::string_view written) { text += written; }, [this] { return now_s; },
                is_terminal, num_columns};
    }
    std::string take() { return std::exchange(text, ""); }
};

TEST(Progress, RewritesOneLineOfATerminal) {
    Bench bench;
    Progress progress("train", 8, 0, bench.output(true));
    progress.update(0, "");
    EXPECT_EQ(bench.take(), "\r\x1b[Ktrain [....................]   0 %");
    bench.now_s += 10;
    progress.update(2, "loss 3.12");
    // 2 of 8 steps in 10 s leave 6 steps, 30 s.
    EXPECT_EQ(bench.take(), "\r\x1b[Ktrain [#####...............]  25 %  loss 3.12  0:30 left");
    bench.now_s += 0.05;
    progress.update(3, "too soon");
    EXPECT_EQ(bench.take(), "");
    progress.update(8, "loss 1.00");
    EXPECT_EQ(bench.take(), "\r\x1b[Ktrain [####################] 100 %  loss 1.00  0:10 taken\n");
}

TEST(Progress, PrintsAFewPlainLinesElsewhere) {
    Bench bench;
    {
        Progress progress("check", 100, 0, bench.output(false));
        for (int done = 1; done <= 100; ++done) {
            bench.now_s += 0.125;
            progress.update(done, "ok");
        }
    }
    // The first at 0.125 s, the next 5 s later, and the last.
    EXPECT_EQ(bench.take(),
              "check   1 %  ok  0:12 left\n"
              "check  41 %  ok  0:07 left\n"
              "check  81 %  ok  0:02 left\n"
              "check 100 %  ok  0:13 taken\n");
}

TEST(Progress, AResumedRunCountsItsOwnTimeOnly) {
    Bench bench;
    Progress progress("train", 100, 90, bench.output(false));
    bench.now_s += 10;
    progress.update(95, "");
    EXPECT_EQ(bench.take(), "train  95 %  0:10 left\n");
}

TEST(Progress, StaysInsideTheTerminalAndLeavesNoOpenLine) {
    Bench bench;
    {
        Progress progress("train", 2, 0, bench.output(true, 12));
        progress.update(1, "a field that does not fit");
        EXPECT_EQ(bench.take(), "\r\x1b[Ktrain [####");
    }
    EXPECT_EQ(bench.take(), "\n");
    {
        Progress progress("\xC3\xA9\xC3\xA9", 2, 0, bench.output(true, 2));
        progress.update(2, "");
        EXPECT_EQ(bench.take(), "\r\x1b[K\xC3\xA9\n");
    }
    EXPECT_EQ(bench.take(), "");
}

TEST(Progress, WritesTimesAsClocksDo) {
    EXPECT_EQ(clock_text(0.4), "0:00");
    EXPECT_EQ(clock_text(59.6), "1:00");
    EXPECT_EQ(clock_text(3599), "59:59");
    EXPECT_EQ(clock_text(3723), "1:02:03");
}

}  // namespace
}  // namespace mok::io
