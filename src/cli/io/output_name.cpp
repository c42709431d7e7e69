#include "cli/io/output_name.h"

#include <fmt/format.h>

#include <system_error>

#include "cli/io/file_error.h"

namespace mok::io {

void refuse_input_as_output(const std::filesystem::path& output,
                            const std::vector<std::filesystem::path>& inputs) {
    for (const std::filesystem::path& input : inputs) {
        std::error_code error;
        if (!std::filesystem::equivalent(output, input, error) || error) continue;
        throw FileError(
            fmt::format("{}: cannot be written: expected another file than the inputs, found the "
                        "input {}",
                        output.string(), input.string()));
    }
}

}  // namespace mok::io
