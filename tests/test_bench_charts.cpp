// Sanitizers: asan
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "cli/bench/bench_charts.h"
#include "cli/bench/trace_json.h"
#include "cli/io/file_error.h"
#include "mok_process.h"
#include "temporary_folder.h"

// Pictures of recorded benchmarks. The records are made up; what a picture must show follows from
// them by hand.
namespace mok::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json record(const char* pass, int64_t tokens, const char* routing, double ms) {
    return {{"pass", pass},
            {"shape", "kimi"},
            {"ranks", 1},
            {"tokens_per_rank", tokens},
            {"experts", 12},
            {"top_k", 8},
            {"hidden", 7168},
            {"intermediate", 2048},
            {"routing", routing},
            {"median_ms", ms},
            {"peer", "torch+triton"},
            {"peer_median_ms", 3.0},
            {"minibatch_rows", 2176},
            {"max_sms", 132},
            {"workspace_bytes", nullptr},
            {"context_bytes", nullptr}};
}
Json run(const std::vector<Json>& records) {
    return {{"device", "H200"}, {"records", records}};
}

class BenchCharts : public testing::Test {
  protected:
    std::string write(const std::string& name, const std::string& text) {
        const auto path = folder_.path() / name;
        write_bytes(path, text);
        return path.string();
    }
    io::LineChart chart(const char* kind, const std::vector<Json>& records) {
        return bench_chart(kind, read_records({write("r.json", run(records).dump())}));
    }
    std::string refusal(const std::string& text) {
        try {
            read_records({write("bad.json", text)});
            return "read";
        } catch (const io::FileError& e) {
            const std::string sentence = e.what();
            EXPECT_THAT(sentence, testing::StartsWith((folder_.path() / "bad.json").string()));
            return sentence.substr((folder_.path() / "bad.json").string().size());
        }
    }

    TemporaryFolder folder_;
};

TEST_F(BenchCharts, MinibatchMarksTheFloor) {
    std::vector<Json> records;
    for (const auto& [rows, ms] :
         {std::pair(4352, 2.2), std::pair(1024, 2.4), std::pair(2176, 2.1)}) {
        records.push_back(record("forward", 2048, "balanced", ms));
        records.back()["minibatch_rows"] = rows;
    }
    records.push_back(record("backward", 2048, "balanced", 5.0));
    records.push_back(record("forward", 2048, "balanced", 9.0));
    records.back()["max_sms"] = nullptr;  // whose floor nobody knows
    const io::LineChart c = chart("minibatch", records);
    ASSERT_EQ(c.series.size(), 4u);
    EXPECT_EQ(c.series[0].name, "kimi backward, T = 2048");
    EXPECT_EQ(c.series[1].name, "kimi forward, T = 2048");
    EXPECT_THAT(c.series[1].x, ElementsAre(1024, 2176, 4352));
    EXPECT_THAT(c.series[1].y, ElementsAre(2.4, 2.1, 2.2));
    // 2 * 132 * 128 * 256 / 4096 columns in the forward, / 2048 in the backward.
    EXPECT_EQ(c.series[2].name, "floor of two full waves: 2112 rows");
    EXPECT_THAT(c.series[2].x, ElementsAre(2112, 2112));
    EXPECT_THAT(c.series[2].y, ElementsAre(2.1, 5.0));
    EXPECT_THAT(c.series[3].x, ElementsAre(4224, 4224));
    EXPECT_THAT(c.title, HasSubstr("H200"));
}

TEST_F(BenchCharts, SpeedUpAgainstTokens) {
    std::vector<Json> records = {
        record("forward", 8192, "balanced", 1.5), record("forward", 512, "balanced", 2.0),
        record("forward", 512, "zipf:1.2", 4.0), record("forward", 1024, "balanced", 2.5)};
    records[3]["peer_median_ms"] = nullptr;
    const io::LineChart c = chart("speedup-tokens", records);
    ASSERT_EQ(c.series.size(), 2u);
    EXPECT_EQ(c.series[0].name, "kimi forward");
    EXPECT_THAT(c.series[0].x, ElementsAre(9, 13));
    EXPECT_THAT(c.series[0].y, ElementsAre(1.5, 2.0));
    EXPECT_EQ(c.series[1].name, "kimi forward, zipf:1.2");
    EXPECT_THAT(c.series[1].y, ElementsAre(0.75));
    ASSERT_EQ(c.references.size(), 1u);
    EXPECT_EQ(c.references[0].y, 1.0);
    EXPECT_THAT(c.y_label, HasSubstr("torch+triton"));
}

TEST_F(BenchCharts, SpeedUpAgainstSkew) {
    const io::LineChart c =
        chart("speedup-skew",
              {record("forward", 2048, "zipf:1.2", 1.0), record("forward", 2048, "zipf:0.5", 2.0),
               record("forward", 2048, "balanced", 1.5), record("forward", 2048, "one-rank", 1.0),
               record("forward", 4096, "balanced", 6.0)});
    ASSERT_EQ(c.series.size(), 2u);
    EXPECT_EQ(c.series[0].name, "kimi forward, T = 2048");
    EXPECT_THAT(c.series[0].x, ElementsAre(0, 0.5, 1.2));  // one-rank has no exponent
    EXPECT_THAT(c.series[0].y, ElementsAre(2.0, 1.5, 3.0));
    EXPECT_THAT(c.series[1].y, ElementsAre(0.5));
}

TEST_F(BenchCharts, MemoryAgainstSkew) {
    std::vector<Json> records = {record("forward", 2048, "balanced", 1.0),
                                 record("backward", 2048, "balanced", 1.0),
                                 record("forward", 2048, "zipf:2", 1.0)};
    for (Json& r : records) r["workspace_bytes"] = int64_t{3} << 30;
    records[0]["context_bytes"] = int64_t{1} << 29;
    records[1]["context_bytes"] = int64_t{1} << 30;
    const io::LineChart c = chart("memory-skew", records);
    ASSERT_EQ(c.series.size(), 2u);
    EXPECT_EQ(c.series[0].name, "kimi, T = 2048: context");
    EXPECT_THAT(c.series[0].y, ElementsAre(1.0));  // the larger of the passes
    EXPECT_EQ(c.series[1].name, "kimi, T = 2048: workspace");
    EXPECT_THAT(c.series[1].x, ElementsAre(0, 2));
    EXPECT_THAT(c.series[1].y, ElementsAre(3.0, 3.0));
}

TEST_F(BenchCharts, RefuseWhatHoldsNothing) {
    EXPECT_THROW(chart("speedup-tokens", {}), std::invalid_argument);
    EXPECT_THROW(chart("memory-skew", {record("forward", 1, "balanced", 1.0)}),
                 std::invalid_argument);
    EXPECT_THROW(chart("latency", {record("forward", 1, "balanced", 1.0)}), std::invalid_argument);
}

TEST_F(BenchCharts, RefuseFilesThatAreNoRecords) {
    EXPECT_EQ(refusal("{"), ": is not JSON");
    EXPECT_EQ(refusal("[]"), ": record file: expected a JSON object, found []");
    EXPECT_EQ(refusal(R"({"records": []})"),
              ": record file.device: expected a value, found nothing");
    EXPECT_EQ(refusal(R"({"device": "x", "records": {}})"),
              ": record file.records: expected a list, found {}");
    Json bad = record("forward", 1, "balanced", 1.0);
    bad["median_ms"] = 0;
    EXPECT_EQ(refusal(run({record("forward", 1, "balanced", 1.0), bad}).dump()),
              ": records[1].median_ms: expected a number above 0 and below 1e+09, found 0");
    bad["median_ms"] = 1;
    bad["tokens_per_rank"] = -4;
    EXPECT_EQ(
        refusal(run({bad}).dump()),
        ": records[0].tokens_per_rank: expected a whole number from 0 to 2147483647, found -4");
    bad["tokens_per_rank"] = 4;
    bad["peer"] = 7;
    EXPECT_EQ(refusal(run({bad}).dump()), ": records[0].peer: expected a text, found 7");
    EXPECT_EQ(refusal(run({"forward"}).dump()),
              ": records[0]: expected a JSON object, found \"forward\"");
    EXPECT_THROW(read_records({"/nowhere/r.json"}), io::FileError);
}

// What a layer cannot have would divide by zero in the floor, or overflow it.
TEST_F(BenchCharts, RefuseValuesThatNoLayerHas) {
    const auto expect_refused = [&](const char* key, const Json& value) {
        Json bad = record("forward", 2048, "balanced", 1.0);
        bad[key] = value;
        EXPECT_THAT(refusal(run({bad}).dump()),
                    testing::StartsWith(fmt::format(": records[0].{}: expected a ", key)))
            << value.dump();
    };
    const uint64_t beyond_int64 = uint64_t{1} << 63;
    for (const char* key : {"hidden", "intermediate", "max_sms", "ranks", "minibatch_rows"}) {
        for (const Json& value : {Json(0), Json(-1), Json(int64_t{1} << 31), Json(beyond_int64),
                                  Json(~uint64_t{0}), Json(1.5), Json("8")}) {
            expect_refused(key, value);
        }
    }
    expect_refused("ranks", 73);
    expect_refused("max_sms", 4097);
    expect_refused("hidden", (int64_t{1} << 30) + 1);
    expect_refused("tokens_per_rank", int64_t{1} << 31);
    expect_refused("workspace_bytes", beyond_int64);
    for (const char* key : {"median_ms", "peer_median_ms"}) {
        for (const double ms : {0.0, -1.0, 1e9, 1e308}) expect_refused(key, ms);
    }

    // The ends of the ranges: the floor stays a number of rows.
    Json least = record("forward", 2048, "balanced", 1.0);
    least["hidden"] = 1;
    least["max_sms"] = 4096;
    least["ranks"] = 72;
    EXPECT_EQ(chart("minibatch", {least}).series.back().x[0], 2.0 * 4096 * 128 * 256);
}

TEST_F(BenchCharts, RefuseFoldersAndDevices) {
    for (const auto& [path, found] : {std::pair(folder_.path().string(), "a folder"),
                                      std::pair(std::string("/dev/zero"), "a device or a pipe")}) {
        const ProcessResult r = run_mok(
            {"bench", "chart", "minibatch", path, "--svg", (folder_.path() / "o").string()});
        EXPECT_EQ(r.status, 2);
        EXPECT_EQ(r.err, fmt::format("mok: {}: expected a regular file, found {}\n", path, found));
    }
}

// The command: a picture of several files, or a sentence and no picture.
TEST_F(BenchCharts, CommandWritesThePicture) {
    const std::string a = write("a.json", run({record("forward", 512, "balanced", 2.0)}).dump());
    const std::string b = write("b.json", run({record("forward", 2048, "balanced", 1.0)}).dump());
    const std::string svg = (folder_.path() / "out.svg").string();
    const ProcessResult made = run_mok({"bench", "chart", "speedup-tokens", a, b, "--svg", svg});
    EXPECT_EQ(made.status, 0) << made.err;
    EXPECT_EQ(made.out, "");  // nothing was measured
    const std::string text = read_bytes(svg);
    EXPECT_THAT(text, testing::StartsWith("<svg"));
    EXPECT_THAT(text, HasSubstr("kimi forward"));

    const std::string before = read_bytes(b);
    const ProcessResult onto = run_mok({"bench", "chart", "speedup-tokens", a, b, "--svg", b});
    EXPECT_EQ(onto.status, 2);
    EXPECT_THAT(onto.err, HasSubstr("expected another file than the inputs, found the input " + b));
    EXPECT_EQ(read_bytes(b), before);

    const std::string beside = (folder_.path() / "beside.json").string();
    std::filesystem::remove(svg);
    for (const std::vector<std::string>& options : {std::vector<std::string>{"--tokens", "128"},
                                                    {"--json", beside},
                                                    {"--backward"},
                                                    {"--shape", "kimi-k2.7"}}) {
        std::vector<std::string> arguments = {"bench"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        arguments.insert(arguments.end(), {"chart", "speedup-tokens", a, "--svg", svg});
        const ProcessResult refused = run_mok(arguments);
        EXPECT_EQ(refused.status, 2);
        EXPECT_THAT(refused.err, HasSubstr("none of mok bench's own options beside chart"));
        EXPECT_FALSE(std::filesystem::exists(svg));
        EXPECT_FALSE(std::filesystem::exists(beside));
    }

    const std::string none = (folder_.path() / "none.svg").string();
    for (const std::vector<std::string>& words : {std::vector<std::string>{"nonsense", a},
                                                  {"memory-skew", a},
                                                  {"minibatch", svg},
                                                  {"minibatch"}}) {
        std::vector<std::string> arguments = {"bench", "chart"};
        arguments.insert(arguments.end(), words.begin(), words.end());
        arguments.insert(arguments.end(), {"--svg", none});
        const ProcessResult refused = run_mok(arguments);
        EXPECT_EQ(refused.status, 2);
        EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
        EXPECT_FALSE(std::filesystem::exists(none));
    }
}

// ---- Traces -----------------------------------------------------------------------------------
TimedTask timed(plan::TaskKind kind, int rank, int sm, uint64_t begin_ns, uint64_t end_ns) {
    TimedTask t;
    t.task.kind = kind;
    t.rank = rank;
    t.sm = sm;
    t.expert = 1;
    t.begin_ns = begin_ns;
    t.end_ns = end_ns;
    return t;
}

// Two multiprocessors of rank 1 multiply for 30 and 20 of 50 us each, of rank 0 one for all of
// them.
TEST_F(BenchCharts, ATraceOfOneRank) {
    std::vector<TimedTask> tasks = {
        timed(plan::TaskKind::GateUp, 0, 7, 1000, 51000),
        timed(plan::TaskKind::DispatchX, 1, 3, 1000, 11000),
        timed(plan::TaskKind::GateUp, 1, 3, 11000, 51000),
        timed(plan::TaskKind::Down, 1, 5, 31000, 51000),
    };
    tasks[2].multiplied_ns = 41000;  // products for 30 us, then an epilogue
    const std::string trace = write("trace.json", trace_json(tasks).dump());
    const std::string svg = (folder_.path() / "trace.svg").string();
    const ProcessResult made =
        run_mok({"bench", "chart", "trace", trace, "--rank", "1", "--svg", svg});
    ASSERT_EQ(made.status, 0) << made.err;
    const std::string text = read_bytes(svg);
    EXPECT_THAT(text, HasSubstr("A forward as rank 1 ran it"));
    EXPECT_THAT(text, HasSubstr("compute: 2 SMs, busy 50.0 % of the time"));
    EXPECT_THAT(text, HasSubstr("communication: 1 workers, busy 20.0 % of the time"));
    EXPECT_THAT(text, HasSubstr("2 of 2 multiprocessors"));

    const ProcessResult alone = run_mok({"bench", "chart", "trace", trace, "--svg", svg});
    ASSERT_EQ(alone.status, 0) << alone.err;
    EXPECT_THAT(read_bytes(svg), HasSubstr("compute: 1 SMs, busy 100.0 % of the time"));
}

TEST_F(BenchCharts, TracesThatAreNone) {
    const std::string trace =
        write("trace.json", trace_json({timed(plan::TaskKind::Down, 0, 0, 1, 2)}).dump());
    const std::string records = write("a.json", run({}).dump());
    const std::string odd = write("odd.json", R"({"traceEvents": [{"ph": "X", "pid": 0, "cat": "x",
        "name": "Sideways", "ts": 0, "dur": 1, "tid": 0, "args": {"expert": 0}}]})");
    const std::string svg = (folder_.path() / "none.svg").string();
    const auto refused = [&](std::vector<std::string> arguments, const std::string& sentence) {
        arguments.insert(arguments.begin(), {"bench", "chart"});
        arguments.insert(arguments.end(), {"--svg", svg});
        const ProcessResult r = run_mok(arguments);
        EXPECT_EQ(r.status, 2) << r.out;
        EXPECT_THAT(r.err, HasSubstr(sentence));
        EXPECT_FALSE(std::filesystem::exists(svg));
    };
    refused({"trace", trace, "--rank", "1"}, "--rank: expected a rank of " + trace + ", found 1");
    refused({"trace", trace, trace}, "chart trace: expected one file, found 2");
    refused({"trace", records}, records + ": expected a trace of mok bench --trace");
    refused({"trace", odd},
            odd + ": traceEvents[0]: expected a task, found a task of the kind \"Sideways\"");
    refused({"minibatch", records, "--rank", "0"}, "--rank: expected chart trace");
}

}  // namespace
}  // namespace mok::cli
