// Case 26: ranks that are late, lost or dead. Every wait ends within the bound, with a sentence.
// Sanitizers: asan tsan
#include <chrono>
#include <limits>
#include <thread>

#include "layer_fixture.h"

namespace mok_test {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// Longer than any pass here takes on a loaded machine under a sanitizer, shorter than patience.
constexpr Seconds kBound{1.0};
// What scheduling may add to a bound.
constexpr double kSlack = 20.0;

CaseOptions small_case() {
    return case_of(48, 64, 32, 6, 2);
}
GroupOptions bounded() {
    GroupOptions o;
    o.timeout = kBound;
    return o;
}
double seconds_since(Clock::time_point start) {
    return Seconds(Clock::now() - start).count();
}

// What each rank's body threw: its sentence and, of a TimeoutError, the peer.
struct End {
    std::string sentence;
    int peer = -2;
    double seconds = 0.0;
};
std::vector<End> ends_of(const std::vector<Group>& groups,
                         const std::function<void(const Group&)>& body) {
    std::vector<End> ends(groups.size());
    cli::run_ranks(groups, [&](const Group& group) {
        End& end = ends[group.rank()];
        const auto start = Clock::now();
        try {
            body(group);
        } catch (const TimeoutError& e) {
            end = {e.what(), e.peer};
        } catch (const InjectedDeath& e) {
            end.sentence = e.what();
        }
        end.seconds = seconds_since(start);
    });
    return ends;
}

bool says(const std::string& sentence, const std::string& part) {
    return sentence.find(part) != std::string::npos;
}

// A step of a rank with a third of the case's tokens.
void step_of(const Group& group, Workspace& w, const RandomCase& c) {
    const int64_t num = c.num_tokens / group.size();
    run_step(w, c, num * group.rank(), num);
}

// A missing rank left the others spinning for ever.
TEST(Case26, ARankThatNeverArrives) {
    const RandomCase c = cli::random_case(small_case());
    const std::vector<Group> groups = Group::in_process(3, bounded());
    const std::vector<End> ends = ends_of(groups, [&](const Group& group) {
        Workspace w(group, c.shape, {}, 16);
        if (group.rank() == 2) return;
        step_of(group, w, c);
    });
    EXPECT_EQ(ends[2].sentence, "");
    for (const int rank : {0, 1}) {
        EXPECT_TRUE(says(ends[rank].sentence, "rank 2 did not come")) << ends[rank].sentence;
        EXPECT_TRUE(says(ends[rank].sentence, "barrier after the ids")) << ends[rank].sentence;
        EXPECT_EQ(ends[rank].peer, 2);
        EXPECT_LT(ends[rank].seconds, kBound.count() + kSlack);
    }
    // The group is broken: the next call says so at once, on every rank.
    const std::vector<End> later =
        ends_of(groups, [&](const Group& group) { Workspace w(group, c.shape, {}, 16); });
    for (const End& end : later) {
        EXPECT_EQ(end.sentence, ends[0].sentence);
        EXPECT_LT(end.seconds, kBound.count() / 2);
    }
}

// A rank that died in the middle of a pass: in which, and after how many of its tasks.
struct Death {
    const char* pass;
    int64_t after_tasks;
};
class Case26Death : public testing::TestWithParam<Death> {};
TEST_P(Case26Death, TheOthersEndWithASentenceThatNamesIt) {
    const RandomCase c = cli::random_case(small_case());
    const std::string pass = GetParam().pass;
    const std::vector<Group> groups = Group::in_process(3, bounded());
    const std::vector<End> ends = ends_of(groups, [&](const Group& group) {
        Workspace w(group, c.shape, {}, 16);
        const auto die_in = [&](const char* name) {
            Diagnostics d;
            if (group.rank() == 1 && pass == name) d.die_after_tasks = GetParam().after_tasks;
            set_diagnostics(w, d);
        };
        const RankPart part = part_of(c, w, 16 * group.rank(), 16);
        RankOutputs o(c, w, 16);
        const Schedule schedule(w, part.ids);
        Context context;
        die_in("forward");
        forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
        die_in("recompute");
        recompute(w, schedule, part.weights, part.inputs, context);
        die_in("backward_input");
        backward_input(w, schedule, part.weights, part.inputs, part.grad_output, context,
                       o.input_grads());
        die_in("wgrad");
        wgrad(w, schedule, part.weights, part.inputs, part.grad_output, context, o.weight_grads());
    });
    EXPECT_TRUE(says(ends[1].sentence, "told to die")) << ends[1].sentence;
    for (const int rank : {0, 2}) {
        EXPECT_TRUE(says(ends[rank].sentence, "rank 1 did not come")) << ends[rank].sentence;
        EXPECT_EQ(ends[rank].peer, 1);
        EXPECT_LT(ends[rank].seconds, kBound.count() + kSlack);
    }
}
INSTANTIATE_TEST_SUITE_P(Passes, Case26Death,
                         testing::Values(Death{"forward", 0}, Death{"forward", 5},
                                         Death{"recompute", 2}, Death{"backward_input", 4},
                                         Death{"wgrad", 3}),
                         [](const auto& info) {
                             return std::string(info.param.pass).append("After") +
                                    std::to_string(info.param.after_tasks);
                         });

TEST(Case26, TheOnlyRankDies) {
    const RandomCase c = cli::random_case(small_case());
    GlobalOptions g;
    g.diagnostics.resize(1);
    g.diagnostics[0].die_after_tasks = 3;
    EXPECT_THROW(run(c, g), InjectedDeath);
}

// A signal that never came was reported as "timeout" and nothing else. The last rank loses what its
// first task, a dispatch, arrived with.
struct Lost {
    const char* name;
    int num_ranks;
    uint64_t order_seed;
};
class Case26Lost : public testing::TestWithParam<Lost> {};
TEST_P(Case26Lost, TheSentenceNamesTaskAndSignal) {
    const RandomCase c = cli::random_case(small_case());
    const int loser = GetParam().num_ranks - 1;
    const std::vector<End> ends =
        ends_of(Group::in_process(GetParam().num_ranks, bounded()), [&](const Group& group) {
            Workspace w(group, c.shape, {}, 48);
            Diagnostics d;
            d.order_seed = GetParam().order_seed;
            d.lose_arrivals_of = group.rank() == loser ? 0 : -1;
            set_diagnostics(w, d);
            step_of(group, w, c);
        });
    const std::string& sentence = ends[0].sentence;
    const std::string rank = "rank " + std::to_string(loser);
    for (const End& end : ends) {
        EXPECT_EQ(end.sentence, sentence);
        EXPECT_EQ(end.peer, loser);
        EXPECT_LT(end.seconds, kBound.count() + kSlack);
    }
    EXPECT_TRUE(says(sentence, rank)) << sentence;
    EXPECT_TRUE(says(sentence, "the group is broken")) << sentence;
    // In program order a peer's wait at the barrier may expire first; a random order tells at once,
    // but finds any of the tasks behind the lost one.
    if (loser > 0 && GetParam().order_seed == 0) return;
    EXPECT_TRUE(says(sentence, rank + ", worker ")) << sentence;
    EXPECT_TRUE(says(sentence, " arrived")) << sentence;
    if (GetParam().order_seed != 0) return;
    EXPECT_TRUE(says(sentence, "GateUp of tile ")) << sentence;
    EXPECT_TRUE(says(sentence, " for x_ready[")) << sentence;
    EXPECT_TRUE(says(sentence, " of 128 arrived")) << sentence;
}
INSTANTIATE_TEST_SUITE_P(Orders, Case26Lost,
                         testing::Values(Lost{"ProgramAlone", 1, 0}, Lost{"ProgramOfTwo", 2, 0},
                                         Lost{"RandomOfTwo", 2, 3}),
                         [](const auto& info) { return info.param.name; });

// A rank that compiled, or saved a checkpoint, was killed for being slow.
TEST(Case26, ASlowRankIsNotKilledButNamed) {
    const RandomCase c = cli::random_case(small_case());
    GroupOptions options;
    options.timeout = Seconds(60.0);
    options.warn_after = Seconds(0.2);
    const std::vector<Group> groups = Group::in_process(2, options);
    testing::internal::CaptureStderr();
    const std::vector<End> ends = ends_of(groups, [&](const Group& group) {
        Workspace w(group, c.shape, {}, 24);
        if (group.rank() == 1) std::this_thread::sleep_for(Seconds(1.0));
        step_of(group, w, c);
    });
    const std::string warnings = testing::internal::GetCapturedStderr();
    for (const End& end : ends) EXPECT_EQ(end.sentence, "");
    EXPECT_TRUE(says(warnings, "rank 0 has waited")) << warnings;
    EXPECT_TRUE(says(warnings, "barrier after the ids for rank 1")) << warnings;
}

// A rank that failed on its own let the others wait for the whole bound.
TEST(Case26, ARankThatGivesUpEndsTheOthersAtOnce) {
    const RandomCase c = cli::random_case(small_case());
    GroupOptions patient;
    patient.timeout = Seconds(300.0);
    const std::vector<Group> groups = Group::in_process(3, patient);
    const std::vector<End> ends = ends_of(groups, [&](const Group& group) {
        Workspace w(group, c.shape, {}, 16);
        if (group.rank() == 1) return group.abandon("the disk is full");
        step_of(group, w, c);
    });
    for (const int rank : {0, 2}) {
        EXPECT_EQ(ends[rank].sentence, "rank 1 gave up: the disk is full");
        EXPECT_EQ(ends[rank].peer, 1);
        EXPECT_LT(ends[rank].seconds, kSlack);
    }
}

TEST(Case26, TheBoundComesFromTheEnvironment) {
    ::unsetenv("MOK_TIMEOUT_S");
    EXPECT_EQ(GroupOptions::default_timeout(), std::chrono::seconds(600));
    ::setenv("MOK_TIMEOUT_S", "2.5", 1);
    EXPECT_EQ(GroupOptions().timeout, Seconds(2.5));
    for (const char* wrong : {"", "soon", "-1", "0", "inf", "nan", "5s", "1000001", "1e300"}) {
        ::setenv("MOK_TIMEOUT_S", wrong, 1);
        EXPECT_THROW(GroupOptions::default_timeout(), ShapeError) << wrong;
    }
    ::unsetenv("MOK_TIMEOUT_S");
}

// The sum of the clock and a huge bound overflowed: the first wait was over at once.
TEST(Case26, ABoundThatTheClockCannotHoldIsRefused) {
    const auto sentence_of = [](Seconds timeout, Seconds warn_after) {
        GroupOptions options;
        options.timeout = timeout;
        options.warn_after = warn_after;
        try {
            Group::in_process(2, options);
        } catch (const ShapeError& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::string rule =
        "timeout: expected a number of seconds above 0 and at most 1000000, found ";
    EXPECT_EQ(sentence_of(Seconds(1e6), Seconds(30)), "");
    EXPECT_EQ(sentence_of(Seconds(1e300), Seconds(30)), rule + "1e+300");
    EXPECT_EQ(sentence_of(Seconds(1.5e6), Seconds(30)), rule + "1.5e+06");
    EXPECT_EQ(sentence_of(Seconds(0), Seconds(30)), rule + "0");
    EXPECT_EQ(sentence_of(Seconds(nan), Seconds(30)), rule + "nan");
    EXPECT_EQ(sentence_of(Seconds(1), Seconds(-1)),
              "warn_after: expected 0 seconds or more, found -1");
    EXPECT_EQ(sentence_of(Seconds(1), Seconds(nan)),
              "warn_after: expected 0 seconds or more, found nan");
}

// The largest bound that is allowed, and a warning that never comes.
TEST(Case26, TheLargestBoundWaits) {
    const RandomCase c = cli::random_case(small_case());
    GroupOptions options;
    options.timeout = Seconds(1e6);
    options.warn_after = Seconds(std::numeric_limits<double>::infinity());
    testing::internal::CaptureStderr();
    const std::vector<End> ends = ends_of(Group::in_process(2, options), [&](const Group& group) {
        Workspace w(group, c.shape, {}, 24);
        if (group.rank() == 1) std::this_thread::sleep_for(Seconds(0.2));
        step_of(group, w, c);
    });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    for (const End& end : ends) EXPECT_EQ(end.sentence, "");
}

}  // namespace
}  // namespace mok_test
