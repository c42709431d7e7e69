#include "cli/common/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "openmok/error.h"

namespace mok::cli {
namespace {

std::optional<int64_t> meminfo_available() {
    std::ifstream file("/proc/meminfo");
    std::string name;
    int64_t kib = 0;
    while (file >> name >> kib) {
        if (name == "MemAvailable:") return kib * 1024;
        file.ignore(1 << 10, '\n');
    }
    return std::nullopt;
}

// A number in a file of the control group; nothing where it is "max" or not there.
std::optional<int64_t> number_in(const std::string& path) {
    std::ifstream file(path);
    int64_t value = 0;
    if (file >> value) return value;
    return std::nullopt;
}

std::optional<int64_t> control_group_left() {
    std::ifstream file("/proc/self/cgroup");
    std::string line;
    while (std::getline(file, line)) {
        if (!line.starts_with("0::")) continue;
        const std::string folder = "/sys/fs/cgroup" + line.substr(3);
        const auto most = number_in(folder + "/memory.max");
        const auto used = number_in(folder + "/memory.current");
        if (most && used) return std::max<int64_t>(*most - *used, 0);
    }
    return std::nullopt;
}

}  // namespace

int64_t available_memory_bytes() {
    const auto machine = meminfo_available(), group = control_group_left();
    if (machine && group) return std::min(*machine, *group);
    return machine ? *machine : group.value_or(-1);
}

void require_memory(double bytes, const char* what) {
    const int64_t available = available_memory_bytes();
    if (available < 0 || bytes <= static_cast<double>(available)) return;
    throw ShapeError(fmt::format("{} needs at least {:.4g} GiB of memory, {:.4g} GiB are available",
                                 what, bytes / 0x1p30, static_cast<double>(available) / 0x1p30));
}

}  // namespace mok::cli
