// A benchmark that rank 0 conducts: the other ranks make the same calls in the same order.
// Sanitizers: tsan
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/bench/gpu_bench.h"
#include "cli/bench/led_layer.h"
#include "cli/common/gather.h"
#include "cli/common/rank_threads.h"

namespace mok::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A layer whose calls are collective and say what they were.
class LoggedLayer final : public TimedLayer {
  public:
    explicit LoggedLayer(const Group& group) : group_(group) {}

    LayerDevice device() const override { return {}; }
    void prepare(const BenchCase& c) override {
        meet(group_, "prepare");
        ids = c.topk_ids;
        calls.push_back("prepare " + std::to_string(c.tokens_per_rank));
    }
    double run_ms(BenchPass pass) override {
        calls.push_back(std::string("run ") + pass_name(pass));
        double slowest = 0.0;
        for (const double ms : gather_values(group_, 1.0 + group_.rank(), "run")) {
            slowest = std::max(slowest, ms);
        }
        return slowest;
    }
    double table_ms() override {
        meet(group_, "table");
        calls.push_back("table");
        return 0.5;
    }
    PassFacts facts(BenchPass pass) override {
        meet(group_, "facts");
        calls.push_back(std::string("facts ") + pass_name(pass));
        return {};
    }
    std::vector<TimedTask> trace(BenchPass pass) override {
        meet(group_, "trace");
        calls.push_back(std::string("trace ") + pass_name(pass));
        return {};
    }

    std::vector<std::string> calls;
    std::vector<int32_t> ids;

  private:
    Group group_;
};

std::vector<BenchCase> two_cases() {
    BenchCase c;
    c.shape.hidden = c.shape.intermediate = 64;
    c.shape.num_experts = 4;
    c.shape.top_k = 2;
    c.num_ranks = 3;
    std::vector<BenchCase> cases(2, c);
    cases[0].tokens_per_rank = 5;
    cases[1].tokens_per_rank = 7;
    return cases;
}

// Rank 0 runs `conduct`; returns every rank's layer.
template <class Conduct>
std::vector<std::unique_ptr<LoggedLayer>> run_led(Conduct&& conduct) {
    std::vector<std::unique_ptr<LoggedLayer>> layers(3);
    run_ranks(Group::in_process(3), [&](const Group& group) {
        layers[group.rank()] = std::make_unique<LoggedLayer>(group);
        if (group.rank() != 0) return follow(group, *layers[group.rank()], two_cases());
        LedLayer led(group, *layers[0]);
        conduct(led);
    });
    return layers;
}

TEST(LedLayer, EveryCallIsMadeOnEveryRank) {
    const auto layers = run_led([](TimedLayer& led) {
        std::vector<BenchCase> cases = two_cases();
        for (BenchCase& c : cases) {
            draw_routing(c);
            led.prepare(c);
            EXPECT_EQ(led.run_ms(BenchPass::Backward), 3.0);  // the slowest rank's
        }
        led.table_ms();
        led.facts(BenchPass::ForwardInference);
        led.trace(BenchPass::Forward);
    });
    for (const auto& layer : layers) {
        EXPECT_THAT(layer->calls,
                    ElementsAre("prepare 5", "run backward", "prepare 7", "run backward", "table",
                                "facts forward-inference", "trace forward"));
        EXPECT_EQ(layer->ids, layers[0]->ids);
        EXPECT_EQ(layer->ids.size(), 3u * 7 * 2);
    }
}

// How often a benchmark calls may depend on rank 0's clock.
TEST(LedLayer, ABenchmarkOnRank0) {
    const auto layers = run_led([](TimedLayer& led) {
        GpuSensors sensors("0000:00:00.0");
        BenchCase c = two_cases()[0];
        draw_routing(c);
        const GpuBenchResult result =
            bench_case(c, {BenchPass::Forward}, {3, 0.02}, led, nullptr, sensors);
        EXPECT_EQ(result.records.at(0).layer.median, 3.0);
    });
    EXPECT_GT(layers[0]->calls.size(), 6u);
    for (const auto& layer : layers) EXPECT_EQ(layer->calls, layers[0]->calls);
}

TEST(LedLayer, AFailureOfRank0EndsTheOthers) {
    std::vector<std::string> sentences(3);
    const std::vector<Group> groups = Group::in_process(3);
    EXPECT_THROW(run_ranks(groups,
                           [&](const Group& group) {
                               LoggedLayer layer(group);
                               try {
                                   if (group.rank() != 0) return follow(group, layer, {});
                                   LedLayer led(group, layer);
                                   throw std::runtime_error("no more");
                               } catch (const TimeoutError& e) {
                                   sentences[group.rank()] = e.what();
                                   throw;
                               }
                           }),
                 std::runtime_error);
    for (const int rank : {1, 2}) {
        EXPECT_THAT(sentences[rank], HasSubstr("rank 0 gave up: the benchmark failed"));
    }
}

}  // namespace
}  // namespace mok::cli
