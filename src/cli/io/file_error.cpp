#include "cli/io/file_error.h"

#include <fmt/format.h>

#include <system_error>

namespace mok::io {

std::string in_quotes(std::string_view text) {
    constexpr std::size_t kMaxBytes = 80;
    std::size_t end = text.size();
    if (end > kMaxBytes) {
        end = kMaxBytes;
        // Not inside a UTF-8 character: its continuation bytes are 10xxxxxx.
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    }
    std::string out = "\"";
    for (char character : text.substr(0, end)) {
        const auto code = static_cast<unsigned char>(character);
        if (code < 0x20 || code == 0x7F) {
            out += fmt::format("\\u{:04x}", code);
        } else {
            if (character == '"' || character == '\\') out += '\\';
            out += character;
        }
    }
    return out + (end < text.size() ? "...\"" : "\"");
}

std::string system_reason(int error_number) {
    return std::generic_category().message(error_number);
}

}  // namespace mok::io
