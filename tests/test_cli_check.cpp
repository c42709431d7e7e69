#include <gtest/gtest.h>

#include <chrono>
#include <regex>

#include "cli/io/safetensors.h"
#include "mok_process.h"

// `mok check` and `mok doctor` as a user runs them.
namespace mok {
namespace {

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
        ++found;
    return found;
}

TEST(CliCheck, QuickPassesWithinAMinute) {
    const auto start = std::chrono::steady_clock::now();
    const ProcessResult r = run_mok({"check", "--quick"});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_EQ(r.status, 0) << r.out << r.err;
    EXPECT_EQ(count(r.out, "  PASS\n"), 11) << r.out;
    EXPECT_EQ(count(r.out, "FAIL"), 0) << r.out;
    EXPECT_NE(r.err.find("100 %"), std::string::npos) << r.err;
}

// One run more than in BF16: x pulled in BF16.
TEST(CliCheck, QuickPassesInFp8) {
    for (const char* precision : {"fp8_block", "mxfp8"}) {
        const ProcessResult r =
            run_mok({"check", "--quick", "--precision", precision, "--ranks", "1,3"});
        EXPECT_EQ(r.status, 0) << r.out << r.err;
        EXPECT_EQ(count(r.out, "  PASS\n"), 11) << r.out;
        EXPECT_NE(r.out.find(std::string("backend cpu, ") + precision), std::string::npos) << r.out;
    }
}

TEST(CliCheck, NamedModelsAndConfigs) {
    for (const char* model : {"gpt-oss-120b", "qwen3.5-397b", "odd", "minimum"}) {
        const ProcessResult r = run_mok({"check", "--quick", "--model", model, "--ranks", "1,3",
                                         "--repeat", "1", "--tokens", "140"});
        EXPECT_EQ(r.status, 0) << model << "\n" << r.out << r.err;
        EXPECT_NE(r.out.find(model), std::string::npos);
    }
    const TemporaryFolder folder;
    const auto config = folder.path() / "config.json";
    write_bytes(config, R"({"model_type": "mixtral", "hidden_size": 96, "intermediate_size": 56,
        "num_local_experts": 3, "num_experts_per_tok": 2, "hidden_act": "silu"})");
    const ProcessResult r = run_mok({"check", "--quick", "--config", config.string(), "--ranks",
                                     "2", "--repeat", "1", "--tokens", "150"});
    EXPECT_EQ(r.status, 0) << r.out << r.err;
    EXPECT_NE(
        r.out.find("checked as: hidden 96, intermediate 56, 3 experts, top-2, shared expert 0; "
                   "150 tokens; ranks 2"),
        std::string::npos)
        << r.out;
}

// A wrong value must be found, with tensor, coordinate, both values and the task.
TEST(CliCheck, AnInjectedErrorIsFound) {
    const std::pair<const char*, const char*> expected[] = {
        {"output",
         R"(output\[70,0\]: found [-0-9.e+]+, expected [-0-9.e+]+ .*; written by reduce of )"
         R"(token \d+ on rank \d, shared expert: Down of tile \d+, part 0, choice 0: )"},
        {"grad_hidden_states", R"(grad_hidden_states\[70,0\]: .*GateUpDgrad of tile \d+, part 0)"},
        {"grad_topk_weights",
         R"(grad_topk_weights\[70,0\]: .*; written by (DownDgrad|reduce) of )"},
        {"grad_gate_proj", R"(grad_gate_proj\[4,0,0\]: .*; written by GateWgrad of expert 4 on )"
                           R"(rank \d \(local expert \d\), macrobatch 0, piece \d, part 0)"},
        {"grad_down_bias", R"(grad_down_bias\[4,0\]: .*; written by DownWgrad of expert 4 )"},
        {"grad_shared_up_proj", R"(grad_shared_up_proj\[36,0\]: .*; written by UpWgrad of the )"
                                R"(shared expert, part 0, of ranks 0, 1, 2, 3 in this order)"},
    };
    for (const auto& [tensor, pattern] : expected) {
        const ProcessResult r = run_mok(
            {"check", "--quick", "--tokens", "140", "--repeat", "1", "--inject-error", tensor});
        EXPECT_EQ(r.status, 1) << tensor;
        EXPECT_GE(count(r.out, "  FAIL ("), 9) << r.out;
        EXPECT_TRUE(std::regex_search(r.out, std::regex(pattern))) << pattern << "\n" << r.out;
        EXPECT_TRUE(std::regex_search(r.err, std::regex("mok: check: \\d+ of 11 checks failed\n$")))
            << r.err;
    }
}

// What a failing check dumps is an input of `mok run`.
TEST(CliCheck, ADumpedCallCanBeRun) {
    const TemporaryFolder folder;
    const std::string dump = (folder.path() / "dump").string();
    const std::string out = (folder.path() / "out").string();
    run_mok({"check", "--quick", "--tokens", "150", "--repeat", "1", "--inject-error", "output",
             "--dump", dump});
    const ProcessResult r = run_mok({"run", dump, "-o", out});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_NE(r.out.find("ranks: 4"), std::string::npos) << r.out;
    EXPECT_EQ(io::SafetensorsFile(out).tensors().size(), 13u);
    // A check that passes leaves no file.
    std::filesystem::remove(dump);
    EXPECT_EQ(
        run_mok({"check", "--quick", "--tokens", "150", "--repeat", "1", "--dump", dump}).status,
        0);
    EXPECT_FALSE(std::filesystem::exists(dump));
}

TEST(CliCheck, ARankThatDoesNotComeIsStatus3) {
    const ProcessResult r = run_mok({"check", "--quick", "--timeout", "1e-9", "--ranks", "2"});
    EXPECT_EQ(r.status, 3) << r.err;
    EXPECT_NE(r.err.find(" waited "), std::string::npos) << r.err;
}

}  // namespace
}  // namespace mok
