#include "cli/io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cli/io/file_error.h"

namespace mok::io {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int error_number) {
    throw FileError(
        fmt::format("{}: cannot be read: {}", path.string(), system_reason(error_number)));
}

std::span<const std::byte> map_descriptor(int descriptor, const std::filesystem::path& path) {
    struct stat status {};
    if (fstat(descriptor, &status) != 0) fail(path, errno);
    if (!S_ISREG(status.st_mode)) {
        throw FileError(fmt::format("{}: expected a regular file, found {}", path.string(),
                                    S_ISDIR(status.st_mode) ? "a folder" : "a device or a pipe"));
    }
    const auto num_bytes = static_cast<std::size_t>(status.st_size);
    if (num_bytes == 0) return {};
    void* address = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) fail(path, errno);
    return {static_cast<const std::byte*>(address), num_bytes};
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
    // O_NONBLOCK: a pipe that nobody writes to is refused, not waited for.
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(path, errno);
    try {
        bytes_ = map_descriptor(descriptor, path);
    } catch (...) {
        close(descriptor);
        throw;
    }
    close(descriptor);
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

}  // namespace mok::io
