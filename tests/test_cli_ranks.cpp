// Commands whose ranks are processes, as far as they go on a machine without a GPU: what is
// refused, in one sentence on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/net/socket.h"
#include "launched_ranks.h"
#include "layer_test_file.h"
#include "openmok/device.h"

namespace mok {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

class CliRanks : public testing::Test {
  protected:
    CliRanks() { write_file(path("in"), file_tensors(cli::random_case(full_layer()))); }

    std::string path(const char* name) const { return (folder_.path() / name).string(); }
    Arguments run(const Arguments& options) const {
        Arguments all{"run", path("in"), "-o", path("out")};
        all.insert(all.end(), options.begin(), options.end());
        return all;
    }

    Arguments train(const Arguments& options) const {
        Arguments all{"train", "--text", path("in"), "--out", path("out")};
        all.insert(all.end(), options.begin(), options.end());
        return all;
    }

    void expect_refused(const ProcessResult& r, const std::string& sentence_part) const {
        EXPECT_EQ(r.status, 2) << r.out << r.err;
        EXPECT_EQ(r.out, "");
        EXPECT_THAT(r.err, HasSubstr(sentence_part));
        EXPECT_TRUE(r.err.starts_with("mok: ")) << r.err;
        EXPECT_EQ(std::ranges::count(r.err, '\n'), 1) << r.err;
        EXPECT_FALSE(std::filesystem::exists(path("out")));
    }
    // As rank r of two that torchrun has started.
    void expect_refused_on_both_ranks(const Arguments& arguments,
                                      const std::string& sentence_part) const {
        SCOPED_TRACE(testing::PrintToString(arguments));
        LaunchedRanks ranks(MOK_PROGRAM);
        const int port = comm::port_of(comm::listen_at("127.0.0.1", 0));
        for (int r = 0; r < 2; ++r) ranks.start(torchrun_variables(r, 2, port), arguments);
        for (int r = 0; r < 2; ++r) expect_refused(ranks.result(r), sentence_part);
    }

    TemporaryFolder folder_;
};

TEST_F(CliRanks, RanksInProcessesNeedAGpu) {
    if (why_no_cuda().empty()) GTEST_SKIP() << "this machine has a GPU";
    const std::string why = has_cuda_backend() ? "CUDA device 0: expected a GPU with its driver"
                                               : "this build has no CUDA backend";
    for (const Arguments& arguments : {Arguments{"check", "--backend", "cuda", "--ranks", "2"},
                                       Arguments{"bench", "--backend", "cuda", "--ranks", "2"},
                                       train({"--backend", "cuda", "--ranks", "2"}),
                                       run({"--backend", "cuda", "--ranks", "2"})}) {
        expect_refused(run_mok(arguments), why);
    }
}

TEST_F(CliRanks, LaunchedRanksNeedAGpuEach) {
    if (!has_cuda_backend()) GTEST_SKIP() << "a build without CUDA";
    if (why_no_cuda().empty()) GTEST_SKIP() << "this machine has a GPU";
    // The same sentence on both ranks.
    const std::string why = "mok: rank 0: CUDA device 0: expected a GPU with its driver, found";
    expect_refused_on_both_ranks({"check"}, why);
    expect_refused_on_both_ranks({"check", "--backend", "cuda", "--ranks", "1,2"}, why);
    expect_refused_on_both_ranks(run({}), why);
    expect_refused_on_both_ranks(run({"--backend", "cuda", "--ranks", "2"}), why);
    expect_refused_on_both_ranks(train({}), why);
    expect_refused_on_both_ranks(train({"--backend", "cuda", "--ranks", "2"}), why);
    expect_refused_on_both_ranks({"bench", "--backend", "cuda"}, why);
}

TEST_F(CliRanks, LaunchedRanksAreNotOfTheCpu) {
    const std::string sentence =
        "--backend cpu: its ranks are threads of one process, found one of a launcher's 2 "
        "processes\n";
    expect_refused_on_both_ranks({"check", "--backend", "cpu"}, sentence);
    expect_refused_on_both_ranks(run({"--backend", "cpu"}), sentence);
    expect_refused_on_both_ranks(train({"--backend", "cpu"}), sentence);
    expect_refused_on_both_ranks({"bench"}, sentence);
}

TEST_F(CliRanks, OptionsAgreeWithTheLauncher) {
    if (!has_cuda_backend()) GTEST_SKIP() << "a build without CUDA";
    const std::string number = "--ranks: expected the launcher's 2 ranks, found 3\n";
    expect_refused_on_both_ranks({"check", "--ranks", "1,3"}, number);
    expect_refused_on_both_ranks(run({"--ranks", "3"}), number);
    expect_refused_on_both_ranks(train({"--ranks", "3"}), number);
    expect_refused_on_both_ranks({"bench", "--backend", "cuda", "--ranks", "3"}, number);
    const std::string threads =
        "--virtual-ranks: expected one process, found one of a launcher's 2\n";
    expect_refused_on_both_ranks({"check", "--virtual-ranks", "2"}, threads);
    expect_refused_on_both_ranks(run({"--virtual-ranks", "2"}), threads);
    expect_refused_on_both_ranks({"bench", "--backend", "cuda", "--virtual-ranks", "2"}, threads);
    expect_refused_on_both_ranks(train({"--virtual-ranks", "2"}), threads);
    expect_refused_on_both_ranks(train({"--hidden", "12"}), "found 12");
    expect_refused_on_both_ranks({"check", "--ranks", "2,3,4"},
                                 "--ranks: expected 1 and one other number with --backend cuda");
    expect_refused_on_both_ranks({"bench", "--backend", "cuda", "--device", "1"},
                                 "--device: expected one process");
}

// A launcher of a single process is none.
TEST_F(CliRanks, ALauncherOfOneProcess) {
    LaunchedRanks ranks(MOK_PROGRAM);
    const int index = ranks.start(torchrun_variables(0, 1, 1), run({"--backend", "cpu"}));
    const ProcessResult r = ranks.result(index);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(std::filesystem::exists(path("out")));
}

TEST_F(CliRanks, ContradictingLaunchers) {
    expect_refused(run_mok(run({}),
                           "WORLD_SIZE=2 RANK=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
                           "MASTER_PORT=1234"),
                   "the launcher's rank: expected one below 2, found 2");
}

TEST_F(CliRanks, VirtualRanksAreOfCuda) {
    const std::string sentence =
        "--virtual-ranks: expected --backend cuda, found cpu, whose ranks --ranks counts\n";
    for (const Arguments& arguments :
         {Arguments{"check", "--backend", "cpu", "--virtual-ranks", "2"},
          run({"--backend", "cpu", "--virtual-ranks", "2"}),
          train({"--backend", "cpu", "--virtual-ranks", "2"})}) {
        expect_refused(run_mok(arguments), sentence);
    }
}

}  // namespace
}  // namespace mok
