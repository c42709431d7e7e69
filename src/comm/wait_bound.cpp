#include "comm/wait_bound.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "openmok/error.h"

namespace mok::comm {
namespace {

constexpr double kMostSeconds = 1e6;

// NaN is none.
bool is_wait_bound(double seconds) {
    return seconds > 0 && seconds <= kMostSeconds;
}

std::string text_of(double seconds) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", seconds);
    return text;
}

[[noreturn]] void refuse(const std::string& name, const std::string& found) {
    throw ShapeError(name + ": expected a number of seconds above 0 and at most 1000000, found " +
                     found);
}

}  // namespace

std::chrono::duration<double> wait_bound(const char* name, const std::string& text) {
    double seconds = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, seconds);
    if (error != std::errc() || stop != end || !is_wait_bound(seconds)) {
        refuse(name, "\"" + (text.size() > 60 ? text.substr(0, 60) + "..." : text) + "\"");
    }
    return std::chrono::duration<double>(seconds);
}

GroupOptions checked(GroupOptions options) {
    if (!is_wait_bound(options.timeout.count())) {
        refuse("timeout", text_of(options.timeout.count()));
    }
    if (!(options.warn_after.count() >= 0)) {
        throw ShapeError("warn_after: expected 0 seconds or more, found " +
                         text_of(options.warn_after.count()));
    }
    options.warn_after = std::min(options.warn_after, options.timeout);
    return options;
}

}  // namespace mok::comm
