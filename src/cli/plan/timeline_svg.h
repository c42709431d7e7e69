#pragma once

#include <string>

#include "cli/plan/simulate.h"

namespace mok::cli {

struct TimelinePicture {
    std::string title;
    std::string rates;  // what the tasks were taken to cost
    int num_sms = 1;
    int comm_workers = 1;
};

// The timeline as self-contained SVG: a lane for every worker, compute above communication; a
// colour for every minibatch, full in a role's first phase and lighter in the next ones; grey for
// the shared expert, light grey for the weight gradients of each piece. Blank in a lane is waiting.
std::string timeline_svg(const Timeline& timeline, const TimelinePicture& picture);

}  // namespace mok::cli
