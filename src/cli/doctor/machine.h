#pragma once

#include <nlohmann/json.hpp>

// What /proc says about the machine.
namespace mok::cli {

// {"model", "architecture", "logical_cores", "usable_cores", "build_is_for", "build_needs"}: the
// last the instruction sets that the build uses; without one of them the program does not start.
nlohmann::ordered_json processor_facts();

// {"total_gib", "available_gib"}: the second as cli/common/memory_limit.h has it.
nlohmann::ordered_json memory_facts();

}  // namespace mok::cli
