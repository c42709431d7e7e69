#include "cli/io/json_file.h"

#include <string_view>

#include "cli/io/file_error.h"
#include "cli/io/mapped_file.h"

namespace mok::io {

nlohmann::json read_json(const std::filesystem::path& path) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded()) throw FileError(path.string() + ": is not JSON");
    return json;
}

}  // namespace mok::io
