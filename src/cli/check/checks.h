#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/random_case.h"

// What `mok check` does: every check is a list of trials, each a run of the layer and a comparison.
namespace mok::cli {

struct CheckOptions {
    LayerShape shape;
    int64_t num_tokens = 600;
    std::vector<int> ranks;
    int num_repeats = 20;
    bool quick = false;
    uint64_t seed = 1;
    GroupOptions group;
    Device device;                   // CUDA: the ranks are virtual ranks that share it, without
    std::optional<Group> processes;  // whose ranks run the trials of as many ranks
};

struct Trial {
    std::string what;  // what is special about it, e.g. "4 ranks"
    std::shared_ptr<const RandomCase> batch;
    GlobalOptions options;
    std::function<std::vector<Mismatch>(const GlobalResult&)> compare;
};

struct Check {
    std::string name;
    std::string against;  // what the result is compared with
    std::vector<Trial> trials;
};

// The checks in the order in which they are to run. Runs the layer once, on one rank: the result
// that others are compared with bit by bit.
std::vector<Check> make_checks(const CheckOptions& options);

// What make_checks leaves out on the options' device, and why: a sentence each.
std::vector<std::string> left_out_checks(const CheckOptions& options);

}  // namespace mok::cli
