#include "cli/doctor/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cli/common/memory_limit.h"
#include "cli/processor/instruction_sets.h"
#include "cli/version.h"

namespace mok::cli {
namespace {

// The first value of a "name : value" line of /proc/cpuinfo, empty where there is none.
std::string cpuinfo(std::string_view name) {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
        const size_t colon = line.find(':');
        if (!line.starts_with(name) || colon == std::string::npos) continue;
        if (line.find_first_not_of(" \t", name.size()) != colon) continue;
        const size_t value = line.find_first_not_of(' ', colon + 1);
        return value == std::string::npos ? "" : line.substr(value);
    }
    return "";
}

// Cores that this process may run on.
int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return -1;
    return CPU_COUNT(&set);
}

// By their names in /proc/cpuinfo.
std::vector<std::string> used_instruction_sets() {
    std::vector<std::string> used;
    for (size_t bit = 0; bit < std::size(kInstructionSetNames); ++bit) {
        if ((kUsedInstructionSets >> bit & 1u) != 0) used.push_back(kInstructionSetNames[bit]);
    }
    return used;
}

double gib(double bytes) {
    return std::round(bytes / 0x1p30 * 10) / 10;
}

}  // namespace

nlohmann::ordered_json processor_facts() {
    utsname system{};
    uname(&system);
    const std::string model = cpuinfo("model name");
    return {{"model", model.empty() ? "unknown" : model},
            {"architecture", system.machine},
            {"logical_cores", sysconf(_SC_NPROCESSORS_ONLN)},
            {"usable_cores", usable_cores()},
            {"build_is_for", *kCpuArch != '\0' ? kCpuArch : "the compiler's default"},
            {"build_needs", used_instruction_sets()}};
}

nlohmann::ordered_json memory_facts() {
    const double total =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    return {{"total_gib", gib(total)},
            {"available_gib", gib(static_cast<double>(available_memory_bytes()))}};
}

}  // namespace mok::cli
