#pragma once

namespace mok::cli {

// The git commit that the program was built from, with "-dirty" where files had been changed since;
// "unknown" outside a git checkout. Written by cmake/commit.cmake at every build.
const char* build_commit();

}  // namespace mok::cli
