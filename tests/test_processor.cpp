#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "cli/processor/instruction_sets.h"
#include "mok_process.h"

// A processor that has not what the build uses is refused in a sentence, not by a signal.
namespace mok::cli {
namespace {

// The first "flags" line of /proc/cpuinfo.
std::set<std::string> flags_of_the_system() {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line) && !line.starts_with("flags")) {
    }
    std::istringstream words(line);
    return {std::istream_iterator<std::string>(words), {}};
}

TEST(Processor, HasWhatTheSystemSays) {
    const std::set<std::string> flags = flags_of_the_system();
    if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags here";
    const unsigned has = processor_instruction_sets();
    for (size_t bit = 0; bit < std::size(kInstructionSetNames); ++bit) {
        const char* name = kInstructionSetNames[bit];
        EXPECT_EQ((has >> bit & 1u) != 0, flags.contains(name)) << name;
    }
    EXPECT_EQ(kUsedInstructionSets & ~has, 0u);
}

// This file is compiled as the program is.
TEST(Processor, UsedIsWhatTheCompilerWasAllowed) {
#ifdef __AVX2__
    EXPECT_NE(kUsedInstructionSets & kAvx2, 0u);
#else
    EXPECT_EQ(kUsedInstructionSets & kAvx2, 0u);
#endif
#ifdef __FMA__
    EXPECT_NE(kUsedInstructionSets & kFma, 0u);
#else
    EXPECT_EQ(kUsedInstructionSets & kFma, 0u);
#endif
}

TEST(Processor, TheSentenceNamesWhatIsMissing) {
    char text[320];
    const size_t length = missing_sets_sentence(kAvx2 | kFma | kMovbe, text, sizeof(text));
    const std::string sentence = text;
    EXPECT_EQ(length, sentence.size());
    EXPECT_TRUE(sentence.starts_with("mok: ")) << sentence;
    EXPECT_NE(sentence.find(" has not: avx2, fma, movbe ("), std::string::npos) << sentence;
    EXPECT_TRUE(sentence.ends_with(")\n")) << sentence;
    missing_sets_sentence(~0u, text, sizeof(text));
    EXPECT_NE(std::string(text).find("movbe, avx512f ("), std::string::npos) << text;
    EXPECT_TRUE(std::string(text).ends_with(")\n")) << text;
}

// By an emulator, where the machine has it: Nehalem is older than AVX, "max" has all
// of x86-64-v3.
TEST(Processor, AnOldOneIsRefusedAtTheStart) {
    if (std::system("qemu-x86_64 --version >/dev/null 2>&1") != 0) {
        GTEST_SKIP() << "no qemu-x86_64 on PATH";
    }
    if ((kUsedInstructionSets & kAvx2) == 0) GTEST_SKIP() << "the build uses no AVX2";
    const ProcessResult old = run_mok({"--version"}, "qemu-x86_64 -cpu Nehalem");
    EXPECT_EQ(old.status, 2);
    EXPECT_EQ(old.out, "");
    EXPECT_NE(old.err.find("mok: this build uses instructions that the processor has not: avx, "),
              std::string::npos)
        << old.err;
    EXPECT_EQ(std::count(old.err.begin(), old.err.end(), '\n'), 1) << old.err;
    if ((kUsedInstructionSets & kAvx512f) != 0) GTEST_SKIP() << "the build uses AVX-512";
    const ProcessResult recent = run_mok({"--version"}, "qemu-x86_64 -cpu max");
    EXPECT_EQ(recent.status, 0) << recent.err;
}

}  // namespace
}  // namespace mok::cli
