#include "cli/bench/in_turn.h"

#include <chrono>

namespace mok::cli {

std::vector<std::vector<double>> time_in_turn(const std::vector<Contestant>& contestants,
                                              const TurnOptions& options,
                                              const std::function<void()>& after_round) {
    using Clock = std::chrono::steady_clock;
    const auto warm = Clock::now() + std::chrono::duration<double>(options.warm_up_s);
    do {
        for (const Contestant& c : contestants) c.run_ms();
    } while (Clock::now() < warm);
    std::vector<std::vector<double>> times(contestants.size());
    for (int i = 0; i < options.iterations; ++i) {
        for (size_t c = 0; c < contestants.size(); ++c) {
            times[c].push_back(contestants[c].run_ms());
        }
        after_round();
    }
    return times;
}

}  // namespace mok::cli
