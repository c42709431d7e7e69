#pragma once

#include <string>

namespace mok::cli {

// What `mok --version` prints: version, commit, compiler, the backends and the GPU architectures
// that are built in.
std::string version_text();

}  // namespace mok::cli
