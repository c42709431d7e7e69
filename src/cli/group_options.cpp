#include "cli/group_options.h"

#include <fmt/format.h>

#include "openmok/error.h"

namespace mok::cli {

GroupOptions group_options(std::optional<double> timeout_s) {
    constexpr double kMost = 1e6;  // the clock counts nanoseconds in 64 bits
    std::chrono::duration<double> timeout =
        timeout_s ? std::chrono::duration<double>(*timeout_s) : GroupOptions::default_timeout();
    if (timeout.count() > kMost) {
        throw ShapeError(fmt::format("{}: expected at most {:.0f} seconds, found {}",
                                     timeout_s ? "--timeout" : "MOK_TIMEOUT_S", kMost,
                                     timeout.count()));
    }
    return {.timeout = timeout};
}

}  // namespace mok::cli
