#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace mok::io {

// The JSON of a file. Throws FileError where the file cannot be read or is not JSON.
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace mok::io
