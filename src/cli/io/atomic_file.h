#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace mok::io {

// A file that appears under its name only when it is complete. Bytes go to a temporary file beside
// the target (".NAME.PID.N.tmp"); commit() flushes it to the disk and renames it over the target.
// Without commit() the target is untouched and the temporary file is removed. Where the target is a
// symbolic link, the file it points to is replaced. Errors are FileError, naming the target.
class AtomicFile {
  public:
    // Creates the temporary file. Refused: a missing folder, a folder that cannot be written to, a
    // target that exists and is not a regular file (a folder, a device).
    explicit AtomicFile(const std::filesystem::path& target);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(std::span<const std::byte> bytes);
    void write(std::string_view text);
    void commit();

  private:
    [[noreturn]] void fail(int error_number) const;
    void create_temporary();
    void remove_temporary() noexcept;

    std::filesystem::path target_;
    std::filesystem::path temporary_;
    int descriptor_ = -1;
};

// The whole of `text` as the file `target`, or an error and no change.
void write_text_file(const std::filesystem::path& target, std::string_view text);

}  // namespace mok::io
