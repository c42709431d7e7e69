#pragma once

#include <vector>

#include "cli/bench/timed_layer.h"
#include "openmok/group.h"

namespace mok::cli {

// A timed layer whose calls are collective, for a benchmark that rank 0 alone conducts: every call
// is told to the other ranks, which are in follow(), and made there too. The end tells them that
// there is no further call; where an exception ends it, they hear of that.
class LedLayer final : public TimedLayer {
  public:
    // `layer` is used, not owned.
    LedLayer(const Group& group, TimedLayer& layer);
    ~LedLayer() override;
    LedLayer(const LedLayer&) = delete;
    LedLayer& operator=(const LedLayer&) = delete;

    LayerDevice device() const override { return layer_.device(); }
    void prepare(const BenchCase& c) override;
    double run_ms(BenchPass pass) override;
    double table_ms() override;
    PassFacts facts(BenchPass pass) override;
    std::vector<TimedTask> trace(BenchPass pass) override;

  private:
    Group group_;
    TimedLayer& layer_;
    int num_exceptions_;
};

// The calls of another rank than 0: `cases` are those that rank 0 prepares, in the same order; what
// it draws is drawn here as well. Returns when rank 0 has no further call. Throws TimeoutError
// where rank 0 failed.
void follow(const Group& group, TimedLayer& layer, std::vector<BenchCase> cases);

}  // namespace mok::cli
