// Sanitizers: asan
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "cli/common/random_case.h"
#include "mok_process.h"
#include "temporary_folder.h"

namespace mok {
namespace {

using Json = nlohmann::json;

class CliPlan : public testing::Test {
  protected:
    ProcessResult run(const std::string& arguments) { return run_mok_line("plan " + arguments); }
    Json plan(const std::string& arguments) {
        const ProcessResult result = run("--json " + arguments);
        EXPECT_EQ(result.status, 0) << result.err;
        return Json::parse(result.out);
    }
    std::string write_config(const std::string& text) {
        const auto path = folder_.path() / "config.json";
        std::ofstream(path) << text;
        return path.string();
    }
    // The layer of the link tests: H 256, I 128, E 12, K 4.
    std::string link_config() {
        return write_config(R"({"model_type": "tiny", "hidden_size": 256, "hidden_act": "silu",
            "moe_intermediate_size": 128, "num_experts": 12, "num_experts_per_tok": 4})");
    }

    TemporaryFolder folder_;
};

// The published point (2368 rows on 148 SMs) and the same rule, 2 W 128 256 / 4096, on 132.
TEST_F(CliPlan, GranularityOfKimi) {
    const std::string model = "--model kimi-k2.7 --tokens-per-rank 64 --ranks 8 --sms ";
    struct Want {
        const char* sms;
        int floor, rows;
    };
    for (const Want& want : {Want{"148", 2368, 2432}, Want{"132", 2112, 2176}}) {
        const Json forward = plan(model + want.sms)["forward"];
        EXPECT_EQ(forward["floor_rows"], want.floor);
        EXPECT_EQ(forward["default_rows"], want.rows);
        EXPECT_EQ(forward["minibatch_rows"], 2 * want.rows);  // four waves
        const std::regex line("forward +" + std::to_string(want.floor) + " +" +
                              std::to_string(want.rows));
        EXPECT_TRUE(std::regex_search(run(model + want.sms).out, line));
    }
    EXPECT_EQ(plan(model + "148")["backward"]["floor_rows"], 4736);  // 2 148 128 256 / 2048
    EXPECT_EQ(plan(model + "148 --minibatch 256")["forward"]["minibatch_rows"], 256);
}

// H = I = 128, E = K = R = 1, T = 128: 128 slots, each buffer [128, 128] bf16 has 32768 bytes, each
// [128] f32 or i32 512, anything smaller 256.
TEST_F(CliPlan, BytesOfTheMinimum) {
    const Json p = plan(
        "--model minimum --tokens-per-rank 128 --ranks 1 --sms 2 --layers 3 "
        "--in-flight 2");
    const Json& m = p["memory"];
    // x, d_y, combine; weights, their gradients, ids twice; counts twice and the barrier's flag.
    const int64_t window = 3 * 32768 + 4 * 512 + 3 * 256;
    EXPECT_EQ(m["window_bytes"], window);
    EXPECT_EQ(m["ring_rows"], 128);
    // Eight row buffers, w, and two router partials a row.
    const int64_t ring = 8 * 32768 + 512 + 1024;
    EXPECT_EQ(m["ring_bytes"], ring);
    EXPECT_EQ(m["wgrad_scratch_bytes"], 0);
    EXPECT_EQ(m["shared_bytes"], 0);
    EXPECT_EQ(m["workspace_bytes"], window + ring + 256);  // and the signals
    // On a GPU no rows of y and d_x, and the window has two router partials a route in place of one
    // gradient and of the ring's; but the table's builder: a barrier, 256 blocks' ids and counts,
    // own counts, 128 routes of 8 bytes; and a pass's tickets and times.
    EXPECT_EQ(m["cuda_workspace_bytes"], (window - 512 + 1024) + (ring - 32768 - 1024) + 256 +
                                             (256 + 256 * 8 + 256 + 256 * 4 + 128 * 8) + 40);
    const Json& balanced = p["routings"][0];
    EXPECT_EQ(balanced["context_bytes"], 2 * 32768);
    EXPECT_EQ(balanced["contexts_bytes"], 3 * 2 * 2 * 32768);
    EXPECT_EQ(balanced["rows"], Json({128}));
    EXPECT_EQ(balanced["forward"]["links_one_copy"]["total_bytes"], 0);
    for (const Json& kind : balanced["forward"]["tasks"]) {
        const bool comm = !kind.contains("waves");
        EXPECT_EQ(kind["tasks"], comm ? 16 : 1) << kind;  // 16 x 8 rows; one tile
        if (!comm) {
            EXPECT_EQ(kind["waves"], 0.5) << kind;
        }
    }
}

// The same layer in FP8: a row of 128 columns has 128 elements and 4 bytes of scales.
TEST_F(CliPlan, BytesOfTheMinimumInFp8) {
    const std::string call = "--model minimum --tokens-per-rank 128 --ranks 1 --sms 2 --precision ";
    for (const char* precision : {"fp8_block", "mxfp8"}) {
        const Json p = plan(call + precision);
        const Json& m = p["memory"];
        const int64_t rows = 128 * 128 + 512;  // both multiples of 256
        EXPECT_EQ(p["precision"], precision);
        EXPECT_EQ(m["fp8_window_bytes"], rows);
        EXPECT_EQ(m["window_bytes"], 3 * 32768 + 4 * 512 + 3 * 256 + rows);
        EXPECT_EQ(m["fp8_ring_bytes"], 6 * rows);  // x, d_y, gate, up, d_gate, d_up
        // Without gate and up in BF16.
        EXPECT_EQ(m["ring_bytes"], 6 * 32768 + 512 + 1024 + 6 * rows);
        EXPECT_EQ(m["max_context_bytes"], 2 * rows);
        // Three matrices in two orientations, of one scale, rounded up to 256 bytes, or of a tile.
        const int64_t scales = precision == std::string("mxfp8") ? 512 : 256;
        EXPECT_EQ(m["fp8_weight_bytes"], 6 * (128 * 128 + scales));
        // As BF16 numbers, where a GPU has no block scales.
        const int64_t operands = precision == std::string("mxfp8") ? 6 * 128 * 128 * 2 : 0;
        EXPECT_EQ(m["mxfp8_operand_bytes"], operands);
        EXPECT_NE(run(call + precision).out.find("FP8 weights"), std::string::npos);
    }
    EXPECT_EQ(plan(call + "bf16")["memory"]["fp8_ring_bytes"], 0);
}

TEST_F(CliPlan, KeepXAndContextRowsSizeTheContext) {
    const std::string call = "--model minimum --tokens-per-rank 256 --ranks 1 --sms 2 ";
    EXPECT_EQ(plan(call + "--keep-x")["routings"][0]["context_bytes"], 3 * 65536);
    EXPECT_EQ(plan(call + "--context-rows 128")["routings"][0]["context_bytes"], 2 * 32768);
    EXPECT_EQ(plan(call + "--context-rows 0")["routings"][0]["context_bytes"], 0);
}

// Rows from rank to rank, counted token by token from the ids.
struct Counted {
    std::vector<std::vector<int64_t>> distinct, every;  // [home][expert rank]
    std::vector<int64_t> padded;                        // [expert rank]
};
constexpr int kRanks = 5, kTokens = 40, kTopK = 4, kExperts = 12;

Counted count_routes(cli::Routing routing) {
    // 12 experts over 5 ranks: 3, 3, 2, 2, 2.
    const int owner[kExperts] = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4};
    const std::vector<int32_t> ids = cli::random_ids(routing, kRanks * kTokens, kExperts, kTopK, 7);
    Counted c;
    c.distinct.assign(kRanks, std::vector<int64_t>(kRanks));
    c.every = c.distinct;
    std::vector<int64_t> rows(kExperts);
    for (int token = 0; token < kRanks * kTokens; ++token) {
        bool reached[kRanks] = {};
        for (int choice = 0; choice < kTopK; ++choice) {
            const int expert = ids[token * kTopK + choice];
            ++rows[expert];
            ++c.every[token / kTokens][owner[expert]];
            reached[owner[expert]] = true;
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            if (reached[rank]) ++c.distinct[token / kTokens][rank];
        }
    }
    // A token at home crosses no link and is read once per choice.
    for (int rank = 0; rank < kRanks; ++rank) c.distinct[rank][rank] = c.every[rank][rank];
    c.padded.assign(kRanks, 0);
    for (int e = 0; e < kExperts; ++e) c.padded[owner[e]] += (rows[e] + 127) / 128 * 128;
    return c;
}

void expect_links(const Json& links, const std::vector<std::vector<int64_t>>& pulled, int64_t pulls,
                  const std::vector<std::vector<int64_t>>& pushed) {
    int64_t total = 0;
    for (int from = 0; from < kRanks; ++from) {
        for (int to = 0; to < kRanks; ++to) {
            const int64_t rows = pulls * pulled[from][to] + pushed[to][from];
            EXPECT_EQ(links["bytes"][from][to], rows * 256 * 2) << from << " to " << to;
            if (from != to) total += rows * 256 * 2;
        }
    }
    EXPECT_EQ(links["total_bytes"], total);
}

TEST_F(CliPlan, LinksAreWhatTheIdsSay) {
    const std::string call =
        "--config '" + link_config() + "' --tokens-per-rank 40 --ranks 5 --sms 4 --seed 7 --links ";
    const Json p = plan(call), kept = plan(call + "--keep-x");
    for (const int r : {0, 1}) {
        const Counted c = count_routes(r == 0 ? cli::Routing::Balanced : cli::Routing::Zipf);
        const Json& routing = p["routings"][r];
        EXPECT_EQ(routing["padded_rows"], c.padded);
        // x comes, y goes; backward d_y and x come, d_x goes.
        expect_links(routing["forward"]["links_one_copy"], c.distinct, 1, c.every);
        expect_links(routing["forward"]["links_copy_per_choice"], c.every, 1, c.every);
        expect_links(routing["backward"]["links_one_copy"], c.distinct, 2, c.every);
        expect_links(routing["backward"]["links_copy_per_choice"], c.every, 2, c.every);
        expect_links(kept["routings"][r]["backward"]["links_one_copy"], c.distinct, 1, c.every);
    }
}

TEST_F(CliPlan, LinkSummaryIsThatOfTheMatrix) {
    const Json links =
        plan("--config '" + link_config() +
             "' --tokens-per-rank 40 --ranks 5 --sms 4 --links")["routings"][1]["forward"]
                                                                ["links_one_copy"];
    int64_t low = INT64_MAX, high = 0;
    for (int from = 0; from < kRanks; ++from) {
        for (int to = 0; to < kRanks; ++to) {
            if (from == to) continue;
            low = std::min<int64_t>(low, links["bytes"][from][to]);
            high = std::max<int64_t>(high, links["bytes"][from][to]);
        }
    }
    EXPECT_EQ(links["min_bytes"], low);
    EXPECT_EQ(links["max_bytes"], high);
    EXPECT_EQ(links["bytes"][links["busiest"][0].get<int>()][links["busiest"][1].get<int>()], high);
}

// No schedule can be shorter than the FLOPs of its tiles at the stated rate.
TEST_F(CliPlan, TimelineTakesAtLeastItsFlops) {
    const auto svg = folder_.path() / "timeline.svg";
    const Json p = plan(
        "--model qwen3-30b-a3b --tokens-per-rank 2048 --ranks 4 --sms 132 "
        "--tflops 500 --svg '" +
        svg.string() + "'");
    const std::string text = read_bytes(svg);
    EXPECT_EQ(text.rfind("<svg", 0), 0u);
    EXPECT_EQ(text.substr(text.size() - 7), "</svg>\n");
    EXPECT_NE(text.find("500 TFLOP/s"), std::string::npos);
    EXPECT_NE(text.find(">GateUp 0<"), std::string::npos);
    std::smatch found;
    ASSERT_TRUE(std::regex_search(text, found, std::regex("the pass takes ([0-9]+)")));
    const Json& routing = p["routings"][0];
    const double rows = routing["padded_rows"][routing["busiest_rank"].get<int>()];
    const double least_us = rows * 6 * 2048 * 768 / 500e12 * 1e6;
    EXPECT_GE(std::stod(found[1]) + 0.5, least_us);
    EXPECT_LE(std::stod(found[1]), 1.5 * least_us);
}

// Where one thread got no memory the others went on alone, for minutes, and the result was lost.
TEST_F(CliPlan, MemoryThatIsNotGiven) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "its shadow memory needs more than the limit";
#endif
    const ProcessResult r =
        run_mok_line("plan --model minimum --tokens-per-rank 250000 --ranks 72 --sms 4",
                     "ulimit -v 500000; timeout 60");
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.err, "mok: the machine has not enough memory for this call\n");
}

TEST_F(CliPlan, RefusesInOneSentence) {
    const std::string rest = " --tokens-per-rank 8 --ranks 2 --sms 4";
    const std::string no_whole_number = "expected a whole number";
    const std::pair<std::string, std::string> cases[] = {
        {"--model odd --tokens-per-rank 010 --ranks 2 --sms 4", no_whole_number},
        {"--model odd --tokens-per-rank x --ranks 2 --sms 4", no_whole_number},
        {"--model odd --minibatch x" + rest, no_whole_number},
        {"--model odd --macrobatch 99999999999999999999" + rest, no_whole_number},
        {"--model odd --context-rows 1.5" + rest, no_whole_number},
        {"--model odd --seed -1" + rest, no_whole_number},
        {"--model odd --svg ''" + rest, "--svg: expected a name"},
        {"--model odd --config ''" + rest, "--config: expected a name"},
        {"--model nobody" + rest, "nobody"},
        {rest, "--model"},
        {"--model odd --config x" + rest, "--config"},
        {"--config '" + (folder_.path() / "absent.json").string() + "'" + rest, "absent.json"},
        {"--model odd --tokens-per-rank 8 --ranks 73 --sms 4", "73"},
        {"--model odd --tokens-per-rank -1 --ranks 2 --sms 4", "-1"},
        {"--model odd --tokens-per-rank 8 --ranks 2 --sms 0", "--sms"},
        {"--model odd --ranks 2 --sms 4", "--tokens-per-rank"},
        {"--model odd --macrobatch 100" + rest, "macrobatch"},
        {"--model odd --svg '" + (folder_.path() / "no/where.svg").string() + "'" + rest,
         "where.svg"},
    };
    for (const auto& [arguments, named] : cases) {
        const ProcessResult result = run(arguments);
        EXPECT_EQ(result.status, 2) << arguments;
        EXPECT_EQ(result.out, "") << arguments;
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
        EXPECT_NE(result.err.find(named), std::string::npos) << result.err;
    }
}

}  // namespace
}  // namespace mok
