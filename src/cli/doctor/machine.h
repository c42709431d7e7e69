#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// What /proc says about the machine.
namespace mok::cli {

// The instruction sets that the compiler was allowed to use, by their names in /proc/cpuinfo, e.g.
// {"avx2", "fma"}, and those of them that the processor has not.
std::vector<std::string> needed_instruction_sets();
std::vector<std::string> missing_instruction_sets();

// {"model", "architecture", "logical_cores", "usable_cores", "build_is_for", "build_needs",
// "missing"}
nlohmann::ordered_json processor_facts();

// {"total_gib", "available_gib"}: the second as cli/common/memory_limit.h has it.
nlohmann::ordered_json memory_facts();

}  // namespace mok::cli
