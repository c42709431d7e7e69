#pragma once

#include <string>
#include <vector>

#include "cli/check/checks.h"
#include "cli/io/progress.h"

namespace mok::cli {

struct CheckOutcome {
    std::string name, against;
    int num_trials = 0, num_failed = 0;
    double seconds = 0.0;
    // One a tensor of the first trial that failed: the trial, the tensor, the coordinate, both
    // values, and the task that wrote the element.
    std::vector<std::string> sentences;
};

// How a run of the checks is made to fail, and what it leaves.
struct CheckExtras {
    std::string inject_error;  // a tensor of the result whose middle element gets 1000 added to it
    std::string dump;          // file for the input of the first trial that fails
    io::ProgressOutput progress = io::stderr_output();
};

// Runs all trials, with a progress line. Throws std::invalid_argument where the tensor of
// inject_error is not in a result.
std::vector<CheckOutcome> run_checks(const std::vector<Check>& checks, const CheckExtras& extras);

}  // namespace mok::cli
