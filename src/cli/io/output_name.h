#pragma once

#include <filesystem>
#include <vector>

namespace mok::io {

// Throws FileError where `output` is the same file as one of `inputs`, by whatever names (links
// included). Names of no file, and empty ones, are passed over: who reads or writes them says more.
void refuse_input_as_output(const std::filesystem::path& output,
                            const std::vector<std::filesystem::path>& inputs);

}  // namespace mok::io
