#include <gtest/gtest.h>

#include "hopper_pair_model.h"

// How the roles of the BF16 backward on Hopper hand stages, entries and tickets over between the
// two CTAs of a pair, as a model of their threads. In whatever order threads, copies and arrivals
// at the other CTA's barriers come, everybody finds in a stage what was meant for it, every barrier
// gets its arrivals, nobody waits for ever and no arrival is left when the CTAs end. It is a model:
// it shows that the order of waits is sound, not that the kernel keeps it.
namespace mok_test {
namespace {

using Fault = HopperPairModel::Fault;
using Step = HopperPairModel::Step;

std::vector<Step> random_steps(uint64_t seed, int count) {
    std::mt19937_64 random(seed);
    std::vector<Step> steps;
    for (const ModelTask& task : random_tasks(seed, count)) {
        const uint64_t which = random() % 6;
        const auto number = static_cast<int>(steps.size());
        const auto earlier = [&] {
            return number > 0 && random() % 2 == 0 ? number - 1 - static_cast<int>(random() % 2)
                                                   : -1;
        };
        Step step{task, which > 3, {which == 0, which == 1}, {}, {}};
        for (int rank = 0; rank < 2; ++rank) {
            step.waits_for[rank] = earlier();
            step.half[rank] = random() % 3 == 0;
        }
        steps.push_back(step);
    }
    return steps;
}

// The first failure of many runs; empty where there is none.
std::string first_failure(Fault fault) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
        const std::vector<Step> steps = random_steps(seed, static_cast<int>(seed % 24));
        const std::string failure = HopperPairModel(seed + 1000, steps, fault).run();
        if (!failure.empty()) return failure;
    }
    return "";
}

TEST(HopperPipelines, PairsFindWhatIsTheirsAndEnd) {
    EXPECT_EQ(first_failure(Fault::None), "");
}

// What the kernel takes care of, left out.
TEST(HopperPipelines, Faults) {
    // A task that is told behind the next one's first block, which the other CTA may not bring yet.
    EXPECT_NE(first_failure(Fault::ToldLate), "");
    // The stage of FP32 sums is given back when the loaders have come to it.
    EXPECT_NE(first_failure(Fault::StageGivenLate), "");
    // Halves of B for a CTA that still reads the stage.
    EXPECT_NE(first_failure(Fault::PeerNotAwaited), "");
    // CTAs that end before the other one has given all back, or taken all tickets.
    EXPECT_NE(first_failure(Fault::EndsAtOnce), "");
    EXPECT_NE(first_failure(Fault::SlotsNotAwaited), "");
}

}  // namespace
}  // namespace mok_test
