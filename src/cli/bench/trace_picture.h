#pragma once

#include <filesystem>
#include <string>

namespace mok::cli {

// A picture of one rank's part of a trace that `mok bench --trace` wrote (trace_json.h): a lane for
// the products of a multiprocessor and one for its exchange, of at most 44 multiprocessors, evenly
// chosen. Blank in a lane of products is an epilogue or waiting. Colours are local experts, in
// turn. Throws FileError where the file is no such trace, std::invalid_argument where it has no
// task of the rank.
std::string trace_svg(const std::filesystem::path& file, int rank);

}  // namespace mok::cli
