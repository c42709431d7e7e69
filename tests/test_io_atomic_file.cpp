#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/io/atomic_file.h"
#include "cli/io/file_error.h"
#include "temporary_folder.h"

namespace mok::io {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t num_files(const fs::path& folder) {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string error_of(const fs::path& target) {
    try {
        write_text_file(target, "text");
    } catch (const FileError& error) {
        return error.what();
    }
    return "";
}

TEST(AtomicFile, AppearsOnlyWhenComplete) {
    const TemporaryFolder folder;
    const fs::path target = folder.path() / "out";
    AtomicFile file(target);
    file.write("one, ");
    EXPECT_FALSE(fs::exists(target));
    file.write("two");
    file.commit();
    EXPECT_EQ(contents(target), "one, two");
    EXPECT_EQ(num_files(folder.path()), 1u);
}

TEST(AtomicFile, WithoutCommitTheOldFileStays) {
    const TemporaryFolder folder;
    const fs::path target = folder.path() / "out";
    write_text_file(target, "old");
    {
        AtomicFile file(target);
        file.write("half of it");
        EXPECT_EQ(contents(target), "old");
    }
    EXPECT_EQ(contents(target), "old");
    EXPECT_EQ(num_files(folder.path()), 1u);
    write_text_file(target, "replaced");
    EXPECT_EQ(contents(target), "replaced");
}

TEST(AtomicFile, HasTheModeOfAnOrdinaryFile) {
    const TemporaryFolder folder;
    const mode_t old_mask = umask(022);
    write_text_file(folder.path() / "out", "");
    umask(old_mask);
    struct stat status {};
    ASSERT_EQ(stat((folder.path() / "out").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0644u);
}

TEST(AtomicFile, ReplacesWhatALinkPointsTo) {
    const TemporaryFolder folder;
    write_text_file(folder.path() / "real", "old");
    fs::create_symlink("real", folder.path() / "link");
    write_text_file(folder.path() / "link", "text");
    EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
    EXPECT_EQ(contents(folder.path() / "real"), "text");
}

TEST(AtomicFile, SaysWhyItCannotWrite) {
    const TemporaryFolder folder;
    const std::string base = folder.path().string();
    EXPECT_EQ(error_of(folder.path() / "none" / "out"),
              base + "/none/out: cannot be written: there is no folder " + base + "/none");
    EXPECT_EQ(error_of(folder.path()),
              base + ": cannot be written: expected a new name or a regular file, found a folder");
    EXPECT_EQ(error_of("/dev/null"),
              "/dev/null: cannot be written: expected a new name or a regular file, found a device "
              "or a pipe");
    write_text_file(folder.path() / "file", "");
    EXPECT_EQ(error_of(folder.path() / "file" / "out"),
              base + "/file/out: cannot be written: Not a directory");
}

TEST(AtomicFile, SaysThatPermissionIsMissing) {
    const TemporaryFolder folder;
    fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec |
                                       fs::perms::others_read | fs::perms::others_exec);
    // Root may write anywhere, so the attempt is made as user 65534 ("nobody").
    const bool is_root = geteuid() == 0;
    if (is_root) {
        ASSERT_EQ(seteuid(65534), 0);
    }
    const std::string error = error_of(folder.path() / "out");
    if (is_root) {
        ASSERT_EQ(seteuid(0), 0);
    }
    fs::permissions(folder.path(), fs::perms::owner_all);
    EXPECT_EQ(error, (folder.path() / "out").string() + ": cannot be written: Permission denied");
}

TEST(AtomicFile, AWriteThatFailsLeavesNothing) {
    const TemporaryFolder folder;
    // A limit on file sizes stands for the full disk: write(2) fails in the same way.
    rlimit old_limit{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
    rlimit limit = old_limit;
    limit.rlim_cur = 1000;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const auto old_handler = signal(SIGXFSZ, SIG_IGN);
    std::string error;
    try {
        write_text_file(folder.path() / "out", std::string(5000, 'x'));
    } catch (const FileError& caught) {
        error = caught.what();
    }
    signal(SIGXFSZ, old_handler);
    setrlimit(RLIMIT_FSIZE, &old_limit);
    EXPECT_EQ(error, (folder.path() / "out").string() + ": cannot be written: File too large");
    EXPECT_EQ(num_files(folder.path()), 0u);
}

}  // namespace
}  // namespace mok::io
