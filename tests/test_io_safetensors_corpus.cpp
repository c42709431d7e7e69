// Sanitizers: asan
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/io/safetensors.h"

// Runs every file of the fuzzer's kept corpus through the reader, without clang.
namespace mok::io {
namespace {

TEST(SafetensorsCorpus, EveryFileIsReadOrRefusedAsItsNameSays) {
    const std::filesystem::path folder =
        std::filesystem::path(MOK_SOURCE_DIR) / "fuzz" / "corpus" / "safetensors";
    int num_valid = 0;
    int num_invalid = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
        const std::string name = file.path().filename().string();
        std::string error;
        try {
            SafetensorsFile content(file.path());
        } catch (const FileError& caught) {
            error = caught.what();
        }
        if (name.starts_with("valid_")) {
            EXPECT_EQ(error, "") << name;
            ++num_valid;
        } else if (name.starts_with("invalid_")) {
            EXPECT_NE(error, "") << name << " was accepted";
            ++num_invalid;
        }
        EXPECT_EQ(error.find('\n'), std::string::npos) << name;
    }
    EXPECT_GE(num_valid, 8);
    EXPECT_GE(num_invalid, 37);
}

}  // namespace
}  // namespace mok::io
