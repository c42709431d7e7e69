#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "cli/bench/gpu_bench.h"
#include "cli/bench/gpu_bench_run.h"
#include "mok_process.h"
#include "temporary_folder.h"

// The GPU benchmark's runner with a layer and peers that only say how long they took. What is right
// follows by hand from those times.
namespace mok::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

const std::string kScript = MOK_SOURCE_DIR "/tests/fake_peer.py";

// Takes the given times one after the other, and appends every run to a log.
class FakeLayer : public TimedLayer {
  public:
    FakeLayer(std::vector<double> times, std::string log)
        : times_(std::move(times)), log_(std::move(log)) {}

    LayerDevice device() const override { return {"Fake GPU", "0000:18:00.0", 1, 1}; }
    void prepare(const BenchCase& c) override { prepared = c; }
    double run_ms(BenchPass pass) override {
        std::ofstream(log_, std::ios::app) << "layer " << pass_name(pass) << "\n";
        return times_[num_runs_++ % times_.size()];
    }
    double table_ms() override { return 0.25 * static_cast<double>(1 + num_tables_++ % 3); }
    PassFacts facts(BenchPass pass) override {
        PassFacts f;
        f.launches = 4;
        if (pass == BenchPass::Forward) f.copy_median_ms = 0.125;
        f.ring_rows = 512;
        f.digest = std::string("digest of ") + pass_name(pass);
        return f;
    }
    std::vector<TimedTask> trace(BenchPass pass) override {
        TimedTask t;
        t.task.kind = pass == BenchPass::Forward ? plan::TaskKind::GateUp : plan::TaskKind::Down;
        t.begin_ns = 1000;
        t.end_ns = 3000;
        return {t};
    }
    BenchCase prepared;

  private:
    std::vector<double> times_;
    std::string log_;
    size_t num_runs_ = 0;
    int num_tables_ = 0;
};

BenchCase small_case() {
    BenchCase c;
    c.name = "small";
    c.shape.hidden = 64;
    c.shape.intermediate = 32;
    c.shape.num_experts = 6;
    c.shape.top_k = 2;
    c.num_ranks = 2;
    c.tokens_per_rank = 5;
    draw_routing(c);
    return c;
}

class GpuBench : public testing::Test {
  protected:
    std::string log() const { return (folder_.path() / "log").string(); }
    std::vector<std::string> log_lines() const {
        std::istringstream text(read_bytes(log()));
        std::vector<std::string> lines;
        for (std::string line; std::getline(text, line);) lines.push_back(line);
        return lines;
    }
    // The fake peer takes its options from a script of its own, for Peers gives it only --ranks.
    PeerOptions peers(const std::string& times, const std::string& memory = "{}") {
        const std::string script = (folder_.path() / "peer.py").string();
        write_bytes(script, "import sys\nsys.argv += ['--log', '" + log() + "', '--times', '''" +
                                times + "''', '--memory', '''" + memory + "''']\nexec(open('" +
                                kScript + "').read())\n");
        PeerOptions options;
        options.kinds = {"torch", "deep_ep"};
        options.script = script;
        return options;
    }

    TemporaryFolder folder_;
    GpuSensors sensors_{"0000:18:00.0", MOK_FAKE_NVML};
};

TEST_F(GpuBench, TimesInTurnAndRecordsMedians) {
    // One run to see whether a pass runs, one of warm-up, then three timed ones.
    FakeLayer layer({9, 9, 4, 2, 3}, log());
    Peers peers(this->peers(R"({"torch+triton": [9, 9, 8, 6, 7], "other": [9, 9, 5, 5, 7],
                                "gemm_only": [9, 9, 1, 1, 1.5],
                                "gemm_only_own_counts": [9, 9, 2, 2.5, 2]})"),
                2);
    const GpuBenchResult result =
        bench_case(small_case(), {BenchPass::Forward}, {3, 0.0}, layer, &peers, sensors_);
    ASSERT_EQ(result.records.size(), 1u);
    const GpuRecord& r = result.records[0];
    EXPECT_EQ(r.layer.median, 3.0);
    EXPECT_EQ(r.layer.min, 2.0);
    EXPECT_EQ(r.layer.max, 4.0);
    EXPECT_EQ(r.peer, "other");  // the fastest
    EXPECT_EQ(r.peer_median_ms, 5.0);
    EXPECT_EQ(r.gemm_only_ms, 1.0);
    EXPECT_EQ(r.own_counts_ms, 2.0);
    EXPECT_EQ(r.table_ms, 0.5);
    EXPECT_DOUBLE_EQ(r.tflops(), 6.0 * 10 * 2 * 64 * 32 / 3.0 * 1e-9);
    EXPECT_THAT(result.notes, ElementsAre("peer deep_ep was not run: No module named 'deep_ep'"));

    std::vector<std::string> want = {"layer forward", "torch+triton forward", "other forward",
                                     "gemm_only forward", "gemm_only_own_counts forward"};
    const size_t round = want.size();
    for (size_t i = round; i < 5 * round; ++i) want.push_back(want[i - round]);
    EXPECT_EQ(log_lines(), want);  // A B C D E, A B C D E, ...
}

TEST_F(GpuBench, GivesThePeersOurRouting) {
    const BenchCase c = small_case();
    FakeLayer layer({1}, log());
    Peers peers(this->peers(R"({"torch+triton": [1]})"), 2);
    peers.setup(c);
    const Json setup = Json::parse(read_bytes(log() + ".setup"));
    EXPECT_EQ(setup["ids"].get<std::vector<int32_t>>(), c.topk_ids);
    EXPECT_EQ(setup["weights"].get<std::vector<float>>(), c.topk_weights);
    EXPECT_EQ(setup["ranks"], 2);  // as --ranks
    EXPECT_EQ(setup["hidden"], 64);
    EXPECT_EQ(setup["peers"], Json({"torch", "deep_ep"}));
    EXPECT_FALSE(std::filesystem::exists(setup["routing_file"].get<std::string>()));
    EXPECT_EQ(peers.torch_version(), "2.11.0");
    EXPECT_EQ(peers.nccl_version(), "2.28.9");
}

TEST_F(GpuBench, LeavesOutAPeerThatCannotRunAPass) {
    FakeLayer layer({2}, log());
    // The fake refuses the passes that stand among a name's times.
    Peers peers(this->peers(R"({"torch+triton": [6], "other": ["backward"]})"), 2);
    const GpuBenchResult result =
        bench_case(small_case(), {BenchPass::Backward}, {2, 0.0}, layer, &peers, sensors_);
    EXPECT_EQ(result.records[0].peer, "torch+triton");
    EXPECT_EQ(result.records[0].peer_median_ms, 6.0);
    EXPECT_EQ(result.records[0].gemm_only_ms, std::nullopt);
    EXPECT_EQ(result.records[0].table_ms, std::nullopt);  // a backward builds none
    EXPECT_DOUBLE_EQ(result.records[0].tflops(), 12.0 * 10 * 2 * 64 * 32 / 2.0 * 1e-9);
    ASSERT_EQ(result.notes.size(), 2u);
    EXPECT_THAT(result.notes[1], HasSubstr("other was left out of the backward"));
    EXPECT_THAT(result.notes[1], HasSubstr("other has no backward"));
}

// In a record stands what the fastest layer of the peers takes, not what its products or a slower
// peer do.
TEST_F(GpuBench, RecordsTheFastestPeersMemory) {
    const char* const times = R"({"slow": [9], "fast": [5], "gemm_only": [1]})";
    FakeLayer layer({2}, log());
    Peers peers(this->peers(times, R"({"slow": {"pass_peak_bytes": 100, "saved_bytes": 60},
                                       "fast": {"pass_peak_bytes": 5000000000, "saved_bytes": 7},
                                       "gemm_only": {"pass_peak_bytes": 3, "saved_bytes": null}})"),
                2);
    const auto record = [&](Peers& asked) {
        return bench_case(small_case(), {BenchPass::Forward}, {1, 0.0}, layer, &asked, sensors_)
            .records.at(0);
    };
    const GpuRecord known = record(peers);
    EXPECT_EQ(known.peer, "fast");
    EXPECT_EQ(known.peer_peak_bytes, 5000000000);
    EXPECT_EQ(known.peer_saved_bytes, 7);
    const Json json = gpu_bench_json({}, {known}).at("records")[0];
    EXPECT_EQ(json.at("peer_peak_bytes"), 5000000000);
    EXPECT_EQ(json.at("peer_saved_bytes"), 7);
    EXPECT_EQ(gpu_bench_table({}, {known}).find("5000000000"), std::string::npos);

    Peers silent(this->peers(times), 2);
    const GpuRecord unknown = record(silent);
    EXPECT_EQ(unknown.peer, "fast");
    EXPECT_EQ(unknown.peer_peak_bytes, std::nullopt);
    EXPECT_EQ(unknown.peer_saved_bytes, std::nullopt);
    Peers half(this->peers(times, R"({"fast": {"pass_peak_bytes": null, "saved_bytes": 0}})"), 2);
    const GpuRecord partly = record(half);
    EXPECT_EQ(partly.peer_peak_bytes, std::nullopt);
    EXPECT_EQ(partly.peer_saved_bytes, 0);
}

TEST_F(GpuBench, RefusesMemoryThatIsNoNumberOfBytes) {
    for (const char* const wrong : {"-1", "1.5", "\"many\""}) {
        FakeLayer layer({2}, log());
        Peers peers(this->peers(R"({"torch+triton": [6]})",
                                R"({"torch+triton": {"saved_bytes": )" + std::string(wrong) + "}}"),
                    2);
        const GpuBenchResult result =
            bench_case(small_case(), {BenchPass::Forward}, {1, 0.0}, layer, &peers, sensors_);
        EXPECT_EQ(result.records.at(0).peer, std::nullopt);
        EXPECT_THAT(
            result.notes.back(),
            HasSubstr("expected a whole number of saved_bytes from 0 or null in its answer"));
    }
}

TEST_F(GpuBench, WarmsUpForTheTimeAskedFor) {
    FakeLayer layer({1}, log());
    const auto begin = std::chrono::steady_clock::now();
    bench_case(small_case(), {BenchPass::ForwardInference}, {1, 0.2}, layer, nullptr, sensors_);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
    EXPECT_GT(log_lines().size(), 5u);
}

TEST_F(GpuBench, WritesARecordWithEveryField) {
    FakeLayer layer({2}, log());
    BenchOptions o;
    o.models = {"minimum"};
    o.tokens = {3, 7};
    o.passes = {"forward", "inference"};
    o.num_virtual_ranks = 2;
    o.routing = "zipf:0.5";
    o.iterations = 3;
    o.warm_up_s = 0.0;
    o.ring_rows = 256;
    o.max_sms = 100;
    o.json = (folder_.path() / "record.json").string();
    o.peers = peers(R"({"torch+triton": [6]})");
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    run_gpu_bench(o, layer);
    const std::string progress = testing::internal::GetCapturedStderr();
    const std::string table = testing::internal::GetCapturedStdout();
    EXPECT_THAT(progress, HasSubstr("minimum T=3: set-up"));
    EXPECT_THAT(progress, HasSubstr("bench 100 %"));
    const Json run = Json::parse(read_bytes(o.json));
    EXPECT_EQ(layer.prepared.tuning.macrobatch_rows, 256);
    EXPECT_EQ(layer.prepared.tuning.max_workers, 100);
    EXPECT_EQ(layer.prepared.topk_ids.size(), 14u);
    for (const char* key : {"command", "commit", "date"}) EXPECT_FALSE(run.at(key).empty()) << key;
    EXPECT_EQ(run.at("device"), "Fake GPU");
    EXPECT_EQ(run.at("torch"), "2.11.0");
    EXPECT_EQ(run.at("nccl"), "2.28.9");
    EXPECT_EQ(run.at("gpus"), 1);
    EXPECT_EQ(run.at("processes"), 1);
    EXPECT_EQ(run.at("virtual"), true);
    for (const char* key : {"driver", "sm_clock_mhz", "power_w"}) EXPECT_TRUE(run.contains(key));
    ASSERT_EQ(run.at("records").size(), 4u);
    const Json& r = run.at("records")[1];
    EXPECT_EQ(r.at("pass"), "forward-inference");
    EXPECT_EQ(run.at("records")[2].at("tokens_per_rank"), 7);
    EXPECT_EQ(r.at("shape"), "minimum");
    EXPECT_EQ(r.at("ranks"), 2);
    EXPECT_EQ(r.at("tokens_per_rank"), 3);
    EXPECT_EQ(r.at("experts"), 1);
    EXPECT_EQ(r.at("top_k"), 1);
    EXPECT_EQ(r.at("hidden"), 128);
    EXPECT_EQ(r.at("intermediate"), 128);
    EXPECT_EQ(r.at("routing"), "zipf:0.5");
    EXPECT_EQ(r.at("precision"), "bf16");
    EXPECT_EQ(r.at("iterations"), 3);
    EXPECT_EQ(r.at("median_ms"), 2.0);
    EXPECT_EQ(r.at("min_ms"), 2.0);
    EXPECT_EQ(r.at("max_ms"), 2.0);
    EXPECT_GT(r.at("tflops"), 0.0);
    EXPECT_EQ(r.at("peer"), "torch+triton");
    EXPECT_EQ(r.at("peer_median_ms"), 6.0);
    EXPECT_EQ(r.at("launches"), 4);
    EXPECT_EQ(run.at("records")[0].at("copy_beside_median_ms"), 0.125);
    EXPECT_TRUE(r.at("copy_beside_median_ms").is_null());
    EXPECT_EQ(r.at("ring_rows"), 512);
    EXPECT_EQ(r.at("digest"), "digest of forward-inference");
    EXPECT_GT(r.at("table_ms"), 0.0);
    for (const char* key :
         {"gemm_only_median_ms", "gemm_only_own_counts_ms", "max_sms", "workspace_bytes",
          "context_bytes", "peak_bytes", "link_bytes", "peer_peak_bytes", "peer_saved_bytes"}) {
        EXPECT_TRUE(r.at(key).is_null()) << key;  // this layer and peer do not know it
    }
    EXPECT_THAT(table, HasSubstr("peer deep_ep was not run"));
    EXPECT_THAT(table, HasSubstr("beside a copy of 64 MiB that took 0.125 ms (median)"));
    EXPECT_THAT(table,
                testing::ContainsRegex("minimum +forward-inference +bf16 +2 +3 +zipf:0.5 +2.000 "
                                       "+2.000 +[0-9]+ +0.[0-9]+ +- +6.000 +- +3.00 +torch"));
}

TEST_F(GpuBench, WritesATraceOfTheFirstPass) {
    FakeLayer layer({2}, log());
    BenchOptions o;
    o.models = {"minimum"};
    o.passes = {"forward"};
    o.iterations = 1;
    o.warm_up_s = 0.0;
    o.trace = (folder_.path() / "trace.json").string();
    testing::internal::CaptureStdout();
    run_gpu_bench(o, layer);
    EXPECT_THAT(testing::internal::GetCapturedStdout(),
                testing::ContainsRegex("GateUp +1 +2.00 +0.00 +2.0"));
    const Json trace = Json::parse(read_bytes(o.trace));
    EXPECT_EQ(trace.at("traceEvents").back().at("name"), "GateUp");
    o.tokens = {1, 2};  // one trace, but two cases
    EXPECT_THROW(run_gpu_bench(o, layer), std::invalid_argument);
}

// Medians of 1500, 1501, ... and 600 W, 601.5 W, ...
TEST(GpuSensors, AsksTheManagementLibrary) {
    GpuSensors sensors("0000:18:00.0", MOK_FAKE_NVML);
    EXPECT_EQ(sensors.driver(), "580.159.03");
    EXPECT_EQ(sensors.sm_clock_mhz(), std::nullopt);
    sensors.sample();
    const double clock = *sensors.sm_clock_mhz(), power = *sensors.power_w();
    EXPECT_GE(clock, 1500.0);
    EXPECT_GE(power, 600.0);
    for (int i = 0; i < 2; ++i) sensors.sample();
    EXPECT_EQ(sensors.sm_clock_mhz(), clock + 1.0);
    EXPECT_EQ(sensors.power_w(), power + 1.5);
}

TEST(GpuSensors, KnowNothingWithoutLibraryDriverOrGpu) {
    GpuSensors other("0000:99:00.0", MOK_FAKE_NVML);
    other.sample();
    EXPECT_EQ(other.sm_clock_mhz(), std::nullopt);
    EXPECT_EQ(other.driver(), "580.159.03");
    GpuSensors missing("0000:18:00.0", "/nowhere/libnvidia-ml.so.1");
    missing.sample();
    EXPECT_EQ(missing.power_w(), std::nullopt);
    EXPECT_EQ(missing.driver(), std::nullopt);
    setenv("FAKE_NO_DRIVER", "1", 1);
    GpuSensors stopped("0000:18:00.0", MOK_FAKE_NVML);
    unsetenv("FAKE_NO_DRIVER");
    stopped.sample();
    EXPECT_EQ(stopped.sm_clock_mhz(), std::nullopt);
}

}  // namespace
}  // namespace mok::cli
