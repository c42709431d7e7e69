// An include points only downward (docs/design.md, layers and folders). The rules are shown to
// catch each kind of breach on small trees made for it, then held against this tree.
// Sanitizers: asan
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "layering_rules.h"

namespace mok::layering {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The breaches in a tree of the given files (path -> text), made for the call.
std::vector<std::string> breaches_in(const std::map<std::string, std::string>& files) {
    const fs::path root = fs::temp_directory_path() / ("mok_layering_" + std::to_string(getpid()));
    fs::remove_all(root);
    for (const auto& [path, text] : files) {
        fs::create_directories((root / path).parent_path());
        std::ofstream(root / path) << text;
    }
    const Report report = check_tree(root);
    EXPECT_EQ(report.num_files, static_cast<int>(files.size()));
    fs::remove_all(root);
    return report.breaches;
}

TEST(Layering, ThisTreeKeepsTheRules) {
    const Report report = check_tree(MOK_SOURCE_DIR);
    EXPECT_GT(report.num_files, 3);
    EXPECT_THAT(report.breaches, IsEmpty());
    for (std::string_view header : kPlainTypes) {
        EXPECT_TRUE(fs::exists(fs::path(MOK_SOURCE_DIR) / "include/openmok" / header)) << header;
    }
}

TEST(Layering, AcceptsEveryDownwardInclude) {
    EXPECT_THAT(breaches_in({
                    {"include/openmok/activation.h", "#include <limits>\n"},
                    {"include/openmok/forward.h", "#include \"openmok/activation.h\"\n"},
                    {"src/math/a.h", "#include \"openmok/activation.h\"\n#include <bit>\n"},
                    {"src/plan/validate.h", "#include \"math/a.h\"\n#include <string>\n"},
                    {"src/comm/sync.h", "#include \"plan/validate.h\"\nasm(\"\");\n"},
                    {"src/arch/b.h", "inline void f() { asm volatile(\"\"); }\n"},
                    {"src/kernels/c.cu", "#include \"arch/b.h\"\n#include \"comm/sync.h\"\n"},
                    {"src/cpu/d.h", "#include <Eigen/Core>\n#include \"comm/sync.h\"\n"},
                    {"src/layer/e.cpp", "#include \"cpu/d.h\"\n#include <openmok/forward.h>\n"},
                    {"src/cli/main.cpp", "#include <CLI/CLI.hpp>\n#include \"math/a.h\"\n"},
                    {"tests/test_f.cpp", "#include \"helper.h\"\n#include \"cpu/d.h\"\n"},
                    {"tests/helper.h", ""},
                }),
                IsEmpty());
}

TEST(Layering, NamesFileLineAndReason) {
    EXPECT_THAT(breaches_in({{"src/math/a.h", "\n/* two\nlines */ #include \"plan/b.h\"\n"},
                             {"src/plan/b.h", ""}}),
                ElementsAre("src/math/a.h:3: includes plan/b.h: math may not include plan"));
}

struct Breach {
    std::string name;
    std::string path;
    std::string text;
    std::string expected;
};

class LayeringBreach : public ::testing::TestWithParam<Breach> {};

TEST_P(LayeringBreach, IsFound) {
    const Breach& breach = GetParam();
    std::map<std::string, std::string> files = {
        {"include/openmok/activation.h", ""},
        {"include/openmok/forward.h", ""},
        {"src/math/a.h", ""},
        {"src/plan/a.h", ""},
        {"src/comm/a.h", ""},
        {"src/arch/a.h", ""},
        {"src/kernels/a.h", ""},
        {"src/cpu/a.h", ""},
        {"src/layer/a.h", ""},
        {"src/cli/a.h", ""},
    };
    files[breach.path] = breach.text;
    EXPECT_THAT(breaches_in(files), ElementsAre(HasSubstr(breach.expected)));
}

INSTANTIATE_TEST_SUITE_P(
    Planted, LayeringBreach,
    ::testing::Values(
        Breach{"Upward", "src/cpu/x.h", "#include \"layer/a.h\"", "cpu may not include layer"},
        Breach{"CpuSeesKernels", "src/cpu/x.h", "#include \"kernels/a.h\"",
               "cpu may not include kernels"},
        Breach{"KernelsSeeCpu", "src/kernels/x.cu", "#include \"../cpu/a.h\"",
               "kernels may not include cpu"},
        Breach{"Sideways", "src/comm/x.h", "#include \"arch/a.h\"", "comm may not include arch"},
        Breach{"LibrarySeesProgram", "src/layer/x.cpp", "#include \"cli/a.h\"",
               "layer may not include cli"},
        Breach{"PlanSeesApi", "src/plan/x.h", "#include <openmok/forward.h>",
               "plan may not include api"},
        Breach{"TypesSeeMath", "include/openmok/activation.h", "#include \"math/a.h\"",
               "types may not include math"},
        Breach{"ApiSeesSource", "include/openmok/x.h", "#include \"plan/a.h\"",
               "only public headers"},
        Breach{"ApiSeesLibrary", "include/openmok/x.h", "#include <Eigen/Core>",
               "only the standard library"},
        Breach{"PlanAllocates", "src/plan/x.h", "#include <vector>", "plan and math include no"},
        Breach{"PlanStrings", "src/plan/x.h", "#include <string>", "plan and math include no"},
        Breach{"MathStrings", "src/math/validate.h", "#include <string>",
               "plan and math include no"},
        Breach{"MathCuda", "src/math/x.h", "#  include <cuda_runtime.h>",
               "plan and math include no"},
        Breach{"PlanTorch", "src/plan/x.h", "#include <torch/torch.h>", "plan and math include no"},
        Breach{"CpuCuda", "src/cpu/x.h", "#include <cuda_runtime.h>", "cpu knows no CUDA"},
        Breach{"LayerEigen", "src/layer/x.h", "#include <Eigen/Core>", "Eigen belongs to cpu"},
        Breach{"LayerFmt", "src/layer/x.h", "#include <fmt/format.h>", "does without it"},
        Breach{"Missing", "src/plan/x.h", "#include \"plan/none.h\"", "no such file"},
        Breach{"NoLayer", "src/misc/x.h", "", "belongs to no layer"},
        Breach{"NoFolder", "src/x.h", "", "belongs to no layer"},
        Breach{"Asm", "src/kernels/x.cu", "asm volatile(\"nop;\");", "inline assembly"},
        Breach{"AsmAfterString", "src/cpu/x.h", "f(\"//\"); __asm__(\"\");", "inline assembly"}),
    [](const auto& info) { return info.param.name; });

TEST(LayeringScan, IgnoresCommentsAndLiterals) {
    EXPECT_THAT(breaches_in({{"src/plan/x.h",
                              "// #include <vector>\n/* asm(\"\");\n#include <string>\n*/\n"
                              "const char* a = \"asm\"; const char* b = R\"(\n asm )\";\n"
                              "int c = 1'000; char d = '\"'; // asm\n"}}),
                IsEmpty());
}

}  // namespace
}  // namespace mok::layering
