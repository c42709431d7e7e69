#pragma once

#include <cstdint>

namespace mok::cli {

// What this process can still use, in bytes: MemAvailable of /proc/meminfo, or what its control
// group (v2) leaves where that is less. -1: neither can be read.
int64_t available_memory_bytes();

// Throws ShapeError where `bytes` exceeds what is available: "WHAT needs at least ... GiB of
// memory, ... GiB are available".
void require_memory(double bytes, const char* what);

}  // namespace mok::cli
