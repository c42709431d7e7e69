#include "cli/io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "cli/io/file_error.h"

namespace mok::io {

namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
    return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

// Makes the new name itself outlast a loss of power. A file system that cannot sync a folder
// (EINVAL) offers nothing more to do, and the file is complete under its name either way.
void sync_folder(const std::filesystem::path& folder) {
    const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    fsync(descriptor);
    close(descriptor);
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target) : target_(target) {
    std::error_code error;
    if (std::filesystem::is_symlink(target_, error)) {
        target_ = std::filesystem::weakly_canonical(target_, error);
        if (error) fail(error.value());
    }
    const auto kind = std::filesystem::status(target_, error).type();
    if (kind != std::filesystem::file_type::not_found &&
        kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::none) {
        throw FileError(fmt::format(
            "{}: cannot be written: expected a new name or a regular file, found {}",
            target_.string(),
            kind == std::filesystem::file_type::directory ? "a folder" : "a device or a pipe"));
    }
    create_temporary();
}

AtomicFile::~AtomicFile() {
    remove_temporary();
}

void AtomicFile::create_temporary() {
    static std::atomic<unsigned> counter{0};
    do {
        temporary_ = folder_of(target_) / fmt::format(".{}.{}.{}.tmp", target_.filename().string(),
                                                      getpid(), counter.fetch_add(1));
        descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ >= 0) return;
    const int error_number = errno;
    if (error_number == ENOENT) {
        throw FileError(fmt::format("{}: cannot be written: there is no folder {}",
                                    target_.string(), folder_of(target_).string()));
    }
    fail(error_number);
}

void AtomicFile::remove_temporary() noexcept {
    if (descriptor_ < 0) return;
    close(descriptor_);
    unlink(temporary_.c_str());
    descriptor_ = -1;
}

void AtomicFile::fail(int error_number) const {
    throw FileError(
        fmt::format("{}: cannot be written: {}", target_.string(), system_reason(error_number)));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t num_written = ::write(descriptor_, bytes.data(), bytes.size());
        if (num_written < 0) {
            if (errno == EINTR) continue;
            fail(errno);
        }
        bytes = bytes.subspan(static_cast<std::size_t>(num_written));
    }
}

void AtomicFile::write(std::string_view text) {
    write(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

void AtomicFile::commit() {
    if (fsync(descriptor_) != 0) fail(errno);
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
    close(descriptor_);
    descriptor_ = -1;
    sync_folder(folder_of(target_));
}

void write_text_file(const std::filesystem::path& target, std::string_view text) {
    AtomicFile file(target);
    file.write(text);
    file.commit();
}

}  // namespace mok::io
