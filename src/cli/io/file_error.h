#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace mok::io {

// A file that cannot be read or written as asked. what() is one sentence for the user: it names the
// file, the place in it, what was expected and what was found.
class FileError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// `text` in double quotes, fit for one line of a terminal: control characters, quotes and
// backslashes are escaped, and more than 80 bytes are cut and marked by "...".
std::string in_quotes(std::string_view text);

// The system's words for an errno value, e.g. "No such file or directory".
std::string system_reason(int error_number);

}  // namespace mok::io
