#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "mok_process.h"
#include "openmok/device.h"

// `mok doctor`, `mok --version` and `mok --help`.
namespace mok {
namespace {

TEST(CliDoctor, SaysWhatIsThere) {
    const ProcessResult r = run_mok({"doctor", "--json"});
    ASSERT_EQ(r.status, 0) << r.err;
    const nlohmann::json facts = nlohmann::json::parse(r.out);
    EXPECT_EQ(facts.at("processor").at("logical_cores"), sysconf(_SC_NPROCESSORS_ONLN));
    for (const std::string set : facts.at("processor").at("build_needs")) {
        EXPECT_NE(read_bytes("/proc/cpuinfo").find(" " + set + " "), std::string::npos) << set;
    }
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
        EXPECT_EQ(facts.at(library).at("compiled") == "none (a CPU build)", !has_cuda_backend());
        EXPECT_FALSE(facts.at(library).at("run_time").get<std::string>().empty());
    }
#ifdef MOK_NCCL_HEADER
    // 10000 * major + 100 * minor + patch, and the same in words.
    const std::string header = read_bytes(MOK_NCCL_HEADER), name = "#define NCCL_VERSION_CODE ";
    const int code = std::stoi(header.substr(header.find(name) + name.size()));
    EXPECT_EQ(facts.at("nccl").at("compiled"), std::to_string(code / 10000) + '.' +
                                                   std::to_string(code / 100 % 100) + '.' +
                                                   std::to_string(code % 100));
#endif
    if (!why_no_cuda().empty()) {
        const std::string sentence = facts.at("will_not_work").at(0);
        const char* why = has_cuda_backend() ? "CUDA device 0: expected a GPU" : "no CUDA backend";
        EXPECT_NE(sentence.find(why), std::string::npos) << sentence;
    }
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

// With libraries that answer like those of a machine with three GPUs.
TEST(CliDoctor, AsksTheGpuLibraries) {
    const std::string fake = "LD_LIBRARY_PATH=" MOK_FAKE_LIBRARIES;
    const ProcessResult r = run_mok({"doctor", "--json"}, fake);
    ASSERT_EQ(r.status, 0) << r.err;
    const nlohmann::json facts = nlohmann::json::parse(r.out);
    const nlohmann::json& gpu = facts.at("gpu");
    EXPECT_EQ(gpu.at("libcuda"), "found");
    EXPECT_EQ(gpu.at("cuda_of_driver"), "13.1");
    ASSERT_EQ(gpu.at("devices").size(), 3u);
    EXPECT_EQ(gpu.at("devices")[2].at("name"), "Fake GPU");
    EXPECT_EQ(gpu.at("devices")[2].at("compute_capability"), "9.2");
    EXPECT_EQ(gpu.at("devices")[2].at("memory_gib"), 80.0);
    EXPECT_EQ(gpu.at("peer_access"), "missing from GPU 0 to 2, 2 to 0");
    EXPECT_EQ(facts.at("nccl").at("run_time"), "2.28.9 (libnccl.so.2)");
    if (!has_cuda_backend()) {
        EXPECT_EQ(facts.at("will_not_work")[0],
                  "--backend cuda: this build has no CUDA backend, so the 3 GPUs of this machine "
                  "are not used");
    }
    const ProcessResult words = run_mok({"doctor"}, fake);
    EXPECT_NE(words.out.find("name Fake GPU, compute capability 9.0, kernels "), std::string::npos)
        << words.out;
}

// A build without kernels for a GPU says so, of any GPU.
TEST(CliDoctor, SaysWhichKernelsAGpuRuns) {
    struct Gpu {
        const char *major, *minor, *name, *state;
    };
    const std::vector<std::string> built = cuda_architectures();
    for (const Gpu& gpu : {Gpu{"9", "0", "sm_90a", ""}, Gpu{"8", "0", "sm_80a", ""},
                           Gpu{"10", "0", "sm_100a", " (compiled but not run yet)"},
                           Gpu{"10", "3", "sm_103a", " (compiled but not run yet)"},
                           Gpu{"12", "0", "sm_120a", ""}}) {
        const ProcessResult r =
            run_mok({"doctor", "--json"}, std::string("FAKE_MAJOR=") + gpu.major + " FAKE_MINOR=" +
                                              gpu.minor + " LD_LIBRARY_PATH=" MOK_FAKE_LIBRARIES);
        ASSERT_EQ(r.status, 0) << r.err;
        const bool is_built = std::find(built.begin(), built.end(), gpu.name) != built.end();
        EXPECT_EQ(nlohmann::json::parse(r.out).at("gpu").at("devices")[0].at("kernels"),
                  is_built ? std::string(gpu.name) + gpu.state : "none in this build");
    }
}

// What a group of ranks on several hosts of one NVLink domain needs.
TEST(CliDoctor, SaysWhetherAGroupMaySpanHosts) {
    const auto rack = [](const std::string& environment) {
        const ProcessResult r =
            run_mok({"doctor", "--json"}, environment + " LD_LIBRARY_PATH=" MOK_FAKE_LIBRARIES);
        EXPECT_EQ(r.status, 0) << r.err;
        return nlohmann::json::parse(r.out).at("rack");
    };
    const bool imex = std::filesystem::exists("/dev/nvidia-caps-imex-channels/channel0");
    const std::string channel = imex ? "" : ", an IMEX channel (/dev/nvidia-caps-imex-channels)";
    const nlohmann::json alone = rack("");
    EXPECT_EQ(alone.at("fabric")[2], "completed, of this host alone");
    EXPECT_EQ(alone.at("group_over_several_hosts"),
              "impossible; missing: fabric handles of every GPU's driver, every GPU in one clique "
              "of an NVLink fabric" +
                  channel);
    const nlohmann::json one = rack("FAKE_FABRIC=1");
    const std::string clique = "000000000000000000000000000000ab/7";
    ASSERT_EQ(one.at("fabric").size(), 3u);
    EXPECT_EQ(one.at("fabric")[1], "completed, clique " + clique);
    EXPECT_EQ(one.at("group_over_several_hosts"),
              imex ? "possible with hosts that say the same clique " + clique
                   : "impossible; missing: an IMEX channel (/dev/nvidia-caps-imex-channels)");
    EXPECT_EQ(rack("FAKE_FABRIC=1 FAKE_CLIQUE=8").at("group_over_several_hosts"),
              "impossible; missing: every GPU in one clique of an NVLink fabric" + channel);
}

TEST(CliDoctor, SaysWhyADriverCannotBeUsed) {
    const ProcessResult r = run_mok({"doctor", "--json"},
                                    "FAKE_NO_DEVICE=1 FAKE_OLD_NCCL=1 "
                                    "LD_LIBRARY_PATH=" MOK_FAKE_LIBRARIES);
    ASSERT_EQ(r.status, 0) << r.err;
    const nlohmann::json facts = nlohmann::json::parse(r.out);
    EXPECT_EQ(facts.at("gpu").at("libcuda"),
              "found, but cuInit failed: no CUDA-capable device is detected (error 100)");
    EXPECT_TRUE(facts.at("gpu").at("devices").empty());
    EXPECT_EQ(facts.at("nccl").at("run_time"), "2.8.9 (libnccl.so.2)");
}

TEST(CliHelp, VersionAndHelp) {
    const ProcessResult version = run_mok({"--version"});
    EXPECT_EQ(version.status, 0);
    EXPECT_TRUE(version.out.starts_with("mok 0.")) << version.out;
    EXPECT_NE(version.out.find("\ncommit: "), std::string::npos);
    const bool cuda = has_cuda_backend();
    EXPECT_NE(version.out.find(cuda ? "\nbackends: cpu, cuda\n" : "\nbackends: cpu\n"),
              std::string::npos);
    const auto says = [&version](const std::string& text) {
        return version.out.find(text) != std::string::npos;
    };
    EXPECT_EQ(says("GPU architectures: none"), cuda_architectures().empty()) << version.out;
    for (const std::string& name : cuda_architectures()) EXPECT_TRUE(says(name)) << version.out;
    const size_t unproven = version.out.find("\ncompiled but not run yet: ");
    EXPECT_EQ(unproven != std::string::npos, says("sm_10")) << version.out;
    if (unproven != std::string::npos) {
        EXPECT_EQ(version.out.find("sm_90a", unproven), std::string::npos) << version.out;
    }
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
