// Sanitizers: asan
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "cli/bench/trace_json.h"
#include "cli/bench/trace_summary.h"
#include "plan/program.h"
#include "plan/traffic.h"
#include "plan_fixture.h"

// Traces of the GPU: the JSON that chrome://tracing and Perfetto read, the summary, and what the
// plan says about each task.
namespace mok::cli {
namespace {

using plan::TaskKind;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

TimedTask timed(TaskKind kind, int sm, uint64_t begin, uint64_t multiplied, uint64_t end) {
    TimedTask t;
    t.task = {kind, 3, 1, -1, -1};
    t.sm = sm;
    t.begin_ns = begin;
    t.multiplied_ns = multiplied;
    t.end_ns = end;
    return t;
}

// Two SMs. On SM 4 the epilogue of the first task overlaps the second task's products, as on a GPU.
std::vector<TimedTask> sample() {
    std::vector<TimedTask> tasks = {timed(TaskKind::Down, 4, 11800, 13000, 13600),
                                    timed(TaskKind::GateUp, 4, 10000, 11500, 12500),
                                    timed(TaskKind::DispatchX, 4, 9000, 0, 10000),
                                    timed(TaskKind::DispatchX, 7, 10750, 0, 11250),
                                    timed(TaskKind::CombineY, 7, 13500, 0, 14500)};
    for (TimedTask& t : tasks) t.expert = 2;
    return tasks;
}

std::vector<Json> complete_events(const Json& trace) {
    std::vector<Json> events;
    for (const Json& e : trace.at("traceEvents")) {
        if (e.at("ph") == "X") events.push_back(e);
    }
    return events;
}

TEST(TraceJson, IsWhatTheFormatAsksFor) {
    const Json trace = Json::parse(trace_json(sample()).dump());
    const std::vector<Json> events = complete_events(trace);
    ASSERT_EQ(events.size(), 7u);  // five tasks, two epilogues
    for (const Json& e : events) {
        EXPECT_TRUE(e.at("name").is_string());
        EXPECT_TRUE(e.at("ts").is_number());
        EXPECT_GE(e.at("ts"), 0.0);
        EXPECT_GE(e.at("dur"), 0.0);
        EXPECT_TRUE(e.at("pid").is_number_integer());
        EXPECT_TRUE(e.at("tid").is_number_integer());
        EXPECT_EQ(e.at("args").at("tile"), 3);
        EXPECT_EQ(e.at("args").at("part"), 1);
        EXPECT_EQ(e.at("args").at("expert"), 2);
    }
    const auto named = [&](const std::string& name) {
        return *std::ranges::find_if(events, [&](const Json& e) { return e.at("name") == name; });
    };
    // Microseconds from the first begin, 9000 ns.
    EXPECT_DOUBLE_EQ(named("GateUp").at("ts"), 1.0);
    EXPECT_DOUBLE_EQ(named("GateUp").at("dur"), 1.5);
    EXPECT_DOUBLE_EQ(named("GateUp epilogue").at("ts"), 2.5);
    EXPECT_DOUBLE_EQ(named("GateUp epilogue").at("dur"), 1.0);
    EXPECT_DOUBLE_EQ(named("CombineY").at("ts"), 4.5);
    EXPECT_DOUBLE_EQ(named("CombineY").at("dur"), 1.0);
    EXPECT_EQ(named("GateUp").at("tid"), named("Down").at("tid"));
    EXPECT_NE(named("GateUp").at("tid"), named("GateUp epilogue").at("tid"));
}

TEST(TraceJson, NamesATrackForEachRoleOfAnSm) {
    const Json trace = trace_json(sample());
    std::map<int, std::string> names;
    for (const Json& e : trace.at("traceEvents")) {
        if (e.at("ph") != "M" || e.at("name") != "thread_name") continue;
        EXPECT_TRUE(names.emplace(e.at("tid"), e.at("args").at("name")).second);
    }
    std::set<std::string> distinct;
    for (const auto& [id, name] : names) distinct.insert(name);
    EXPECT_EQ(distinct,
              (std::set<std::string>{"SM 4 products", "SM 4 epilogues", "SM 4 exchange",
                                     "SM 7 products", "SM 7 epilogues", "SM 7 exchange"}));
    for (const Json& e : complete_events(trace)) {
        const std::string& track = names.at(e.at("tid"));
        const std::string name = e.at("name");
        const bool epilogue = name.ends_with("epilogue");
        const bool exchange = name == "DispatchX" || name == "CombineY";
        EXPECT_THAT(track, HasSubstr(epilogue ? "epilogues" : exchange ? "exchange" : "products"));
    }
}

TEST(TraceJson, NothingOverlapsOnATrack) {
    EXPECT_EQ(first_overlap(sample()), std::nullopt);
    std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
    for (const Json& e : complete_events(trace_json(sample()))) {
        const double begin = e.at("ts"), duration = e.at("dur");
        tracks[{e.at("pid"), e.at("tid")}].emplace_back(begin, begin + duration);
    }
    for (auto& [track, spans] : tracks) {
        std::ranges::sort(spans);
        for (size_t i = 1; i < spans.size(); ++i) {
            EXPECT_LE(spans[i - 1].second, spans[i].first + 1e-9);
        }
    }
    const Json nothing = trace_json({});
    EXPECT_TRUE(nothing.at("traceEvents").empty());
}

TEST(FirstOverlap, NamesTwoTasksOfOneRole) {
    std::vector<TimedTask> tasks = sample();
    tasks.push_back(timed(TaskKind::GateUp, 4, 11499, 11600, 11700));
    ASSERT_TRUE(first_overlap(tasks).has_value());
    EXPECT_EQ(*first_overlap(tasks),
              "rank 0 SM 4: GateUp tile 3 part 1 (10000 to 11500 ns) overlaps GateUp tile 3 part 1 "
              "(11499 to 11600 ns)");
    tasks.back().sm = 5;
    EXPECT_EQ(first_overlap(tasks), std::nullopt);
    tasks.back() = timed(TaskKind::CombineY, 7, 14499, 0, 15000);
    EXPECT_TRUE(first_overlap(tasks).has_value());
    tasks.back().rank = 1;
    EXPECT_EQ(first_overlap(tasks), std::nullopt);
}

TEST(TraceSummary, AddsUpByHand) {
    std::vector<TimedTask> tasks = sample();
    // Products run in [10000, 11500) and [11800, 13000). Of the first dispatch's bytes none, of the
    // second's all, and none of the combine's move then; of GateUp's own, from its epilogue
    // [11500, 12500), 700 of 1000.
    tasks[2].remote_bytes = 1000;
    tasks[3].remote_bytes = 3000;
    tasks[4].remote_bytes = 2000;
    tasks[1].remote_bytes = 4000;
    const TraceSummary s = summary_of(tasks);
    EXPECT_EQ(s.num_sms, 2);
    EXPECT_DOUBLE_EQ(s.span_us, 5.5);
    EXPECT_EQ(s.remote_bytes, 10000);
    EXPECT_DOUBLE_EQ(*s.hidden_share, (3000 + 0.7 * 4000) / 10000);
    ASSERT_EQ(s.kinds.size(), 4u);
    EXPECT_EQ(s.kinds[0].kind, TaskKind::DispatchX);
    EXPECT_EQ(s.kinds[0].tasks, 2);
    EXPECT_DOUBLE_EQ(s.kinds[0].busy_us, 1.5);
    EXPECT_EQ(s.kinds[1].kind, TaskKind::GateUp);
    EXPECT_DOUBLE_EQ(s.kinds[1].busy_us, 2.5);
    EXPECT_DOUBLE_EQ(s.kinds[1].epilogue_us, 1.0);
    const std::string table = trace_table(s);
    EXPECT_THAT(table, HasSubstr("5.5 us on 2 SMs"));
    EXPECT_THAT(table, HasSubstr("10000, 58.0 % while products ran"));
    EXPECT_THAT(table, testing::ContainsRegex("DispatchX +2 +0.75 +0.00 +0.8"));
    EXPECT_EQ(summary_of(sample()).hidden_share, std::nullopt);
    EXPECT_EQ(summary_of({}).num_sms, 0);
}

// Every task's bytes by the plan: all of a role together are the rows that plan/traffic.h counts.
TEST(RemoteBytes, OfAllTasksAreThePassesTraffic) {
    for (const int32_t ranks : {1, 2, 3, 8}) {
        plan::fixture::for_each_routing(
            ranks, 400, 5, [](const plan::Problem& p, const auto&, const auto& owned) {
                const plan::Pass pass{plan::PassKind::Forward, p, owned.table};
                int64_t pulled = 0, pushed = 0;
                for (const plan::Role role : {plan::Role::Compute, plan::Role::Comm}) {
                    const int64_t count = plan::count(pass, role);
                    for (int64_t at = 0; at < count; ++at) {
                        const plan::Task task = plan::decode(pass, role, at);
                        const int64_t bytes = remote_bytes_of(pass, task);
                        (task.kind == TaskKind::DispatchX ? pulled : pushed) += bytes;
                    }
                }
                const auto remote = [&](std::vector<int64_t> rows) {
                    rows[pass.problem.rank] = 0;
                    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
                    return all * pass.problem.hidden * 2;
                };
                std::vector<int64_t> want_pulled(pass.problem.num_ranks, 0),
                    want_pushed = want_pulled;
                plan::add_rows_pulled(pass, TaskKind::DispatchX, plan::Copies::OnePerGroup,
                                      want_pulled.data());
                plan::add_rows_pushed(pass, TaskKind::CombineY, want_pushed.data());
                EXPECT_EQ(pulled, remote(want_pulled));
                EXPECT_EQ(pushed, remote(want_pushed));
            });
    }
}

// Of every task the expert whose segment holds its rows.
TEST(ExpertOf, IsTheSegmentsExpert) {
    plan::fixture::for_each_routing(
        3, 300, 6, [](const plan::Problem& p, const auto&, const auto& owned) {
            for (const auto kind : {plan::PassKind::Forward, plan::PassKind::Backward}) {
                const plan::Pass pass{kind, p, owned.table};
                const int64_t count = plan::count(pass, plan::Role::Compute);
                for (int64_t at = 0; at < count; ++at) {
                    const plan::Task task = plan::decode(pass, plan::Role::Compute, at);
                    const int expert = expert_of(pass, task);
                    const bool of_wgrad = plan::is_wgrad(task.kind);
                    const bool shared =
                        of_wgrad ? task.piece < 0 : plan::is_shared_tile(p, task.tile);
                    ASSERT_EQ(expert < 0, shared);
                    if (shared || of_wgrad) continue;
                    const int32_t slot = task.tile * plan::kTileRows;
                    EXPECT_LE(owned.table.segment_begin[expert], slot);
                    EXPECT_LT(slot, owned.table.segment_begin[expert + 1]);
                }
            }
        });
}

}  // namespace
}  // namespace mok::cli
