#pragma once

#include <functional>
#include <string>
#include <vector>

namespace mok::cli {

// Something that is timed: one execution a call, in milliseconds.
struct Contestant {
    std::string name;
    std::function<double()> run_ms;
};

struct TurnOptions {
    int iterations = 100;
    double warm_up_s = 2.0;  // of the same alternation, so that a power limit has settled
};

// Times all contestants in turn: A B C A B C ... Element [c][i] is contestant c's i-th time. The
// warm-up is at least one round. after_round is called after each timed round.
std::vector<std::vector<double>> time_in_turn(const std::vector<Contestant>& contestants,
                                              const TurnOptions& options,
                                              const std::function<void()>& after_round);

}  // namespace mok::cli
