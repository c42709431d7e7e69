#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace mok::io {

// A regular file mapped read-only. The bytes stay valid as long as the object lives, also when the
// file's name is meanwhile given to another file (as AtomicFile does); shortening the file in place
// while it is mapped is the one thing that must not happen.
class MappedFile {
  public:
    // Throws FileError where the file is missing, unreadable or not a regular file.
    explicit MappedFile(const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return bytes_; }

  private:
    std::span<const std::byte> bytes_;
};

}  // namespace mok::io
