#include "cli/group_options.h"

#include "comm/wait_bound.h"

namespace mok::cli {

void add_timeout_option(CLI::App& command, std::optional<std::string>& timeout) {
    command
        .add_option("--timeout", timeout,
                    "Bound on every wait for another rank (default: MOK_TIMEOUT_S, or 600)")
        ->type_name("SECONDS");
}

GroupOptions group_options(const std::optional<std::string>& timeout) {
    return {.timeout = timeout ? comm::wait_bound("--timeout", *timeout)
                               : GroupOptions::default_timeout()};
}

}  // namespace mok::cli
