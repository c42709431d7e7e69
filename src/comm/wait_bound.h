#pragma once

#include <chrono>
#include <string>

#include "openmok/group.h"

// The rule on GroupOptions::timeout, wherever it comes from: above 0 and at most 1e6 seconds (a
// clock counts nanoseconds in 64 bits, and a sum of two bounds must stay below their end).
namespace mok::comm {

// The bound that a text such as "2.5" or "1e3" says. Throws ShapeError whose sentence begins with
// `name` where it says none or the rule is broken.
std::chrono::duration<double> wait_bound(const char* name, const std::string& text);

// The options that a group keeps: warn_after is at most timeout, where no warning is given any
// more. Throws ShapeError where the rule is broken or warn_after is below 0.
GroupOptions checked(GroupOptions options);

}  // namespace mok::comm
