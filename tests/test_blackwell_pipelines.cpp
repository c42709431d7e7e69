#include <gtest/gtest.h>

#include "makers_model.h"
#include "pair_model.h"

// How the roles of the Blackwell backwards hand stages, operands and sums over, as a model of their
// threads: block_scaled_maker.cuh, block_scaled_backward_loader.cuh and _engine.cuh of a CTA alone,
// backward_pair_*.cuh of a pair of CTAs, with backward_consumer.cuh's order of waits. In whatever
// order threads, copies and products run, everybody finds in a stage what was meant for it, every
// barrier gets its arrivals and nobody waits for ever. It is a model: it shows that the order of
// waits is sound, not that the kernels keep it.
namespace mok_test {
namespace {

// Steps of a pair: two tasks that are one product, or a task of one CTA that is dry in the other.
// What waits for a step waits for all of its tasks.
PairModel::Steps steps_of(std::vector<ModelTask> tasks, uint64_t seed) {
    std::mt19937_64 random(seed);
    PairModel::Steps steps{tasks, tasks};
    for (size_t i = 0; i < tasks.size(); ++i) {
        const uint64_t which = random() % 4;
        if (which < 2) steps[which][i].is_dry = true;
    }
    return steps;
}

template <class Run>
int count_failures(int seeds, Run&& run, std::string& first) {
    int failures = 0;
    for (int seed = 0; seed < seeds; ++seed) {
        const std::string failure = run(static_cast<uint64_t>(seed));
        if (!failure.empty() && failures++ == 0) first = failure;
    }
    return failures;
}
std::string run_makers(uint64_t seed, Fault fault) {
    const std::vector<ModelTask> tasks = random_tasks(seed, 24);
    return MakersModel(seed + 1000, tasks, fault).run();
}
std::string run_pairs(uint64_t seed, Fault fault) {
    const PairModel::Steps steps = steps_of(random_tasks(seed, 24), seed);
    return PairModel(seed + 1000, steps, fault).run();
}

TEST(BlackwellPipelines, MakersFindWhatIsTheirsAndEnd) {
    std::string first;
    EXPECT_EQ(count_failures(
                  400, [](uint64_t s) { return run_makers(s, Fault::None); }, first),
              0)
        << first;
}
TEST(BlackwellPipelines, PairsFindWhatIsTheirsAndEnd) {
    std::string first;
    EXPECT_EQ(count_failures(
                  400, [](uint64_t s) { return run_pairs(s, Fault::None); }, first),
              0)
        << first;
}

// What the kernels take care of, left out.
TEST(BlackwellPipelines, Faults) {
    std::string first;
    // Makers that go on before stages that consumers alone use have come.
    EXPECT_GT(count_failures(
                  400, [](uint64_t s) { return run_makers(s, Fault::MakersRunAhead); }, first),
              0);
    // A stage that is given back at the second block of a task's rows, of two stages.
    EXPECT_GT(count_failures(
                  400, [](uint64_t s) { return run_makers(s, Fault::StageGivenBackLate); }, first),
              0);
    // A task that is told behind the next one's sums, which wait for the other CTA.
    EXPECT_GT(count_failures(
                  400, [](uint64_t s) { return run_pairs(s, Fault::ToldLate); }, first),
              0);
}

}  // namespace
}  // namespace mok_test
