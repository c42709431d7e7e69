#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "mok_process.h"
#include "temporary_folder.h"

// What `mok bench` records. No time is judged.
namespace mok {
namespace {

using Json = nlohmann::json;

class CliBench : public testing::Test {
  protected:
    ProcessResult run(const std::string& arguments) { return run_mok_line("bench " + arguments); }
    Json record(const std::string& arguments) {
        const auto path = folder_.path() / "record.json";
        const ProcessResult result = run(arguments + " --json '" + path.string() + "'");
        EXPECT_EQ(result.status, 0) << result.err;
        EXPECT_NE(result.out.find("ratio"), std::string::npos) << result.out;
        return Json::parse(read_bytes(path));
    }

    TemporaryFolder folder_;
};

const char* const kSmall =
    "--hidden 64 --intermediate 32 --experts 6 --top-k 2 --threads 2 --iterations 3 ";

TEST_F(CliBench, RecordsBothPasses) {
    const Json r = record(std::string(kSmall) + "--tokens 40 --ranks 2 --backward");
    EXPECT_NE(r["command"].get<std::string>().find("bench --hidden 64"), std::string::npos);
    EXPECT_FALSE(r["commit"].get<std::string>().empty());
    EXPECT_FALSE(r["device"].get<std::string>().empty());
    EXPECT_GE(r["cores"], 1);
    EXPECT_EQ(r["gpus"], 0);
    EXPECT_TRUE(std::regex_match(r["date"].get<std::string>(),
                                 std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
    ASSERT_EQ(r["records"].size(), 2u);
    for (const Json& pass : r["records"]) {
        const bool backward = pass["pass"] == "backward";
        EXPECT_EQ(pass["ranks"], 2);
        EXPECT_EQ(pass["tokens_per_rank"], 40);
        EXPECT_EQ(pass["hidden"], 64);
        EXPECT_EQ(pass["intermediate"], 32);
        EXPECT_EQ(pass["experts"], 6);
        EXPECT_EQ(pass["top_k"], 2);
        EXPECT_EQ(pass["iterations"], 3);
        EXPECT_EQ(pass["precision"], "bf16");
        EXPECT_LE(pass["min_ms"], pass["median_ms"]);
        EXPECT_LE(pass["median_ms"], pass["max_ms"]);
        EXPECT_GT(pass["min_ms"], 0.0);
        EXPECT_GT(pass["gemm_only_own_counts_ms"], 0.0);
        // 6 T K H I of both ranks, twice that in the backward.
        const double flops = 6.0 * 80 * 2 * 64 * 32 * (backward ? 2 : 1);
        const double median_ms = pass["median_ms"];
        EXPECT_NEAR(pass["tflops"].get<double>(), flops / median_ms * 1e-9, 1e-12);
        EXPECT_GT(pass["workspace_bytes"], 0);
        EXPECT_GT(pass["context_bytes"], 0);
        EXPECT_GT(pass["link_bytes"], 0);
        EXPECT_EQ(pass["digest"].get<std::string>().size(), 64u);
    }
    EXPECT_EQ(r["records"][0]["pass"], "forward");
    EXPECT_EQ(r["records"][1]["pass"], "backward");
}

// The digest is that of the whole batch's output, which does not depend on the number of ranks.
TEST_F(CliBench, DigestIsThatOfTheBatch) {
    const std::string small = kSmall;
    const Json one = record(small + "--tokens 80 --ranks 1")["records"];
    const Json two = record(small + "--tokens 40 --ranks 2")["records"];
    const Json other = record(small + "--tokens 41 --ranks 2")["records"];
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0]["link_bytes"], 0);
    EXPECT_EQ(one[0]["digest"], two[0]["digest"]);
    EXPECT_NE(one[0]["digest"], other[0]["digest"]);
}

TEST_F(CliBench, TakesSeveralTokenCounts) {
    const Json records = record(std::string(kSmall) + "--tokens 40,24")["records"];
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0]["tokens_per_rank"], 40);
    EXPECT_EQ(records[1]["tokens_per_rank"], 24);
}

TEST_F(CliBench, RefusesInOneSentence) {
    for (const std::string arguments : {"--model nobody",
                                        "--hidden 010",
                                        "--intermediate x",
                                        "--experts -1",
                                        "--top-k 0",
                                        "--json /nonexistent/record.json",
                                        "--hidden 63",
                                        "--top-k 17",
                                        "--tokens 0",
                                        "--ranks 73",
                                        "--hidden 65536 --intermediate 65536 --experts 4096",
                                        "--shapes small",
                                        "--tokens 1,x",
                                        "--shapes slices --model minimum",
                                        "--backend tpu",
                                        "--routing balanced",
                                        "--peers torch",
                                        "--trace x.json",
                                        "--backend cuda --threads 2",
                                        "--peers nobody",
                                        "--passes all",
                                        "--warm-up nan",
                                        "--shapes ''",
                                        "--json ''"}) {
        const ProcessResult result = run(arguments);
        EXPECT_EQ(result.status, 2) << arguments;
        EXPECT_EQ(result.out, "") << arguments;
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    }
}

// The ranks whose threads had started waited ten minutes for those that could not be.
TEST_F(CliBench, ThreadsThatCannotBeStarted) {
    const ProcessResult result = run_mok_line("bench --tokens 8 --ranks 72 " + std::string(kSmall),
                                              "ulimit -s 8192; ulimit -v 400000;");
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_EQ(result.err.rfind("mok: the system has no thread left for this call", 0), 0u)
        << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

}  // namespace
}  // namespace mok
