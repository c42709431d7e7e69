#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "mok_process.h"

// `mok doctor`, `mok --version` and `mok --help`.
namespace mok {
namespace {

TEST(CliDoctor, SaysWhatIsThere) {
    const ProcessResult r = run_mok({"doctor", "--json"});
    ASSERT_EQ(r.status, 0) << r.err;
    const nlohmann::json facts = nlohmann::json::parse(r.out);
    EXPECT_EQ(facts.at("processor").at("logical_cores"), sysconf(_SC_NPROCESSORS_ONLN));
    EXPECT_TRUE(facts.at("processor").at("missing").empty());
    const double total_gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<double>(sysconf(_SC_PAGESIZE)) / (1024.0 * 1024 * 1024);
    EXPECT_NEAR(facts.at("memory").at("total_gib").get<double>(), total_gib, 0.06);
    EXPECT_GT(facts.at("memory").at("available_gib").get<double>(), 0.0);
    EXPECT_EQ(facts.at("cpu_backend"), "works");
    EXPECT_EQ(facts.at("backend").at("chosen"), "cpu");
    const bool has_driver = std::filesystem::exists("/proc/driver/nvidia/version");
    const std::string driver = facts.at("gpu").at("kernel_driver");
    EXPECT_EQ(driver.starts_with("none ("), !has_driver) << driver;
    for (const char* key :
         {"libcuda", "cuda_of_driver", "devices", "device_files", "peer_access"}) {
        EXPECT_TRUE(facts.at("gpu").contains(key)) << key;
    }
    for (const char* library : {"cuda", "nccl"}) {
        EXPECT_EQ(facts.at(library).at("compiled"), "none (a CPU build)");
        EXPECT_FALSE(facts.at(library).at("run_time").get<std::string>().empty());
    }
    EXPECT_NE(facts.at("will_not_work").at(0).get<std::string>().find("no CUDA backend"),
              std::string::npos);
}

TEST(CliDoctor, SaysTheSameInWords) {
    const ProcessResult r = run_mok({"doctor"});
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.err, "");
    for (const char* part : {"processor\n", "  model: ", "memory\n", "  kernel driver: ", "nccl\n",
                             "cpu backend: works\n", "will not work\n"}) {
        EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
    }
}

TEST(CliHelp, VersionAndHelp) {
    const ProcessResult version = run_mok({"--version"});
    EXPECT_EQ(version.status, 0);
    EXPECT_TRUE(version.out.starts_with("mok 0.")) << version.out;
    EXPECT_NE(version.out.find("\ncommit: "), std::string::npos);
    EXPECT_NE(version.out.find("\nbackends: cpu\n"), std::string::npos);
    EXPECT_NE(version.out.find("GPU architectures: none"), std::string::npos);
    for (const char* command : {"run", "check", "doctor"}) {
        const ProcessResult all = run_mok({"--help"});
        EXPECT_EQ(all.status, 0);
        EXPECT_NE(all.out.find(std::string("\n  ") + command), std::string::npos) << all.out;
        const ProcessResult help = run_mok({command, "--help"});
        EXPECT_EQ(help.status, 0);
        EXPECT_EQ(help.err, "");
        EXPECT_NE(help.out.find("Usage: "), std::string::npos) << help.out;
    }
}

}  // namespace
}  // namespace mok
