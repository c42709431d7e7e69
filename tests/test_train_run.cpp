#include <gtest/gtest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/io/safetensors.h"
#include "cli/io/sha256.h"
#include "mok_process.h"

// `mok train` itself, on a tiny model and a text of its own: seconds.
namespace mok {
namespace {

ProcessResult run(const std::string& arguments, const std::string& environment = "") {
    return run_mok_line("train " + arguments, environment);
}

// The word after the line's first word.
std::string field(const std::string& text, const std::string& name) {
    const size_t line = text.find("\n" + name + " ");
    if (line == std::string::npos) return "";
    const size_t begin = text.find_first_not_of(' ', line + 1 + name.size());
    return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

class TrainRun : public testing::Test {
  protected:
    TrainRun() {
        std::ofstream text(folder.path() / "text");
        uint64_t state = 1;
        const char* words[] = {"the ",    "king ", "and ",   "his ",
                               "people ", "went ", "out.\n", "of "};
        for (int i = 0; i < 8000; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text << words[state >> 61];
        }
    }
    std::string base(const std::string& out = "out") const {
        return "--text " + (folder.path() / "text").string() + " --out " +
               (folder.path() / out).string() +
               " --hidden 16 --intermediate 16 --experts 6 --ngram-order 3 --ngram-rows 64 "
               "--backend cpu --window 3 --sequences 9 --steps 8 --warmup 2 --eval-sequences 20 "
               "--workers 1 ";
    }
    std::filesystem::path checkpoint(const std::string& out = "out") const {
        return folder.path() / out / "checkpoint.safetensors";
    }
    std::string hash_of(const std::string& arguments) const {
        const ProcessResult outcome = run(base() + arguments);
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        const std::string hash = field(outcome.out, "hash");
        EXPECT_EQ(hash.size(), 64u) << outcome.err;
        return hash;
    }
    void expect_refused(const std::string& arguments, const std::string& sentence) const {
        const ProcessResult outcome = run(arguments);
        EXPECT_EQ(outcome.status, 2) << outcome.err;
        EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    }

    TemporaryFolder folder;
};

TEST_F(TrainRun, TheHashDoesNotDependOnRanks) {
    const std::string expected = hash_of("--ranks 1");
    for (const char* ranks : {"1", "2", "3", "4", "8", "12"}) {
        EXPECT_EQ(hash_of(std::string("--ranks ") + ranks), expected) << ranks << " ranks";
    }
    EXPECT_NE(hash_of("--ranks 1 --seed 2"), expected);
}

TEST_F(TrainRun, TheHashDoesNotDependOnRanksInFp8) {
    const std::string bf16 = hash_of("--ranks 1");
    for (const char* precision : {"fp8_block", "mxfp8"}) {
        const std::string option = std::string("--precision ") + precision;
        const std::string expected = hash_of("--ranks 1 " + option);
        EXPECT_EQ(hash_of("--ranks 4 " + option), expected) << precision;
        EXPECT_NE(expected, bf16) << precision;
    }
}

TEST_F(TrainRun, TheHashDoesNotDependOnRanksWithASharedExpert) {
    const std::string expected = hash_of("--ranks 1 --shared-intermediate 8");
    EXPECT_EQ(hash_of("--ranks 3 --shared-intermediate 8"), expected);
    EXPECT_EQ(hash_of("--ranks 4 --shared-intermediate 8"), expected);
    EXPECT_NE(hash_of("--ranks 4"), expected);
}

TEST_F(TrainRun, TheHashIsThatOfTheCheckpointsWeightsInNameOrder) {
    const std::string printed = hash_of("--ranks 2");
    const io::SafetensorsFile file(checkpoint());
    io::Sha256 sha;
    int count = 0;
    for (const io::TensorEntry& tensor : file.tensors()) {  // sorted by name
        if (tensor.name.starts_with("adam.") || tensor.name == "loss") continue;
        EXPECT_EQ(tensor.dtype, io::DType::F32);
        sha.update(tensor.data);
        ++count;
    }
    EXPECT_EQ(count, 8);
    EXPECT_EQ(sha.finish_hex(), printed);
    EXPECT_EQ(file.metadata().at("step"), "8");
}

TEST_F(TrainRun, ResumeWithOtherRanksReachesTheSameHash) {
    const std::string expected = hash_of("--ranks 2");
    const ProcessResult stopped = run(base("part") + "--ranks 4 --stop-after 3");
    EXPECT_EQ(stopped.status, 0) << stopped.err;
    EXPECT_NE(field(stopped.out, "hash"), expected);
    const std::string resume = " --resume " + checkpoint("part").string();
    EXPECT_EQ(hash_of("--ranks 3" + resume), expected);
    EXPECT_EQ(hash_of("--ranks 1" + resume), expected);
}

TEST_F(TrainRun, CheckpointsOnTheWayDoNotChangeTheHash) {
    const std::string expected = hash_of("--ranks 2");
    EXPECT_EQ(hash_of("--ranks 2 --checkpoint-every 2"), expected);
}

TEST_F(TrainRun, RefusesTheCheckpointOfAnotherRun) {
    ASSERT_EQ(run(base("part") + "--ranks 1 --stop-after 2").status, 0);
    const std::string resume = " --resume " + checkpoint("part").string();
    expect_refused(base() + "--seed 7" + resume,
                   "checkpoint of another run, its config.seed: expected 7, found 1");
    std::ofstream(folder.path() / "text", std::ios::app) << "x";
    expect_refused(base() + resume, "checkpoint of another run, its text_sha256: expected ");
    expect_refused(base() + " --resume " + (folder.path() / "text").string(), "text");
    expect_refused(base() + " --resume " + (folder.path() / "none").string(), "none");
}

TEST_F(TrainRun, ReportsAModelThatBeatsItsBaselines) {
    const ProcessResult outcome = run(base() + "--ranks 2 --steps 60 --learning-rate 0.01");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto held_out = [&](const std::string& start) {
        const size_t line = outcome.out.find("\n" + start);
        EXPECT_NE(line, std::string::npos) << outcome.err;
        return std::stod(outcome.out.substr(line + 1 + 48, 10));
    };
    // The text's entropy is 3 bits a word of 4.6 bytes on average.
    const double entropy = 3.0 / (37.0 / 8.0);
    EXPECT_GT(held_out("mixture of experts"), entropy);
    EXPECT_LT(held_out("mixture of experts"), held_out("bigram"));
    EXPECT_LT(held_out("bigram"), held_out("unigram"));
    EXPECT_TRUE(std::filesystem::is_regular_file(folder.path() / "out" / "loss.svg"));
}

TEST_F(TrainRun, RefusesBadRequests) {
    const std::string out = " --out " + (folder.path() / "out").string();
    expect_refused("--text /nonexistent/text" + out, "/nonexistent/text");
    std::ofstream(folder.path() / "short") << "too short";
    expect_refused("--text " + (folder.path() / "short").string() + out,
                   "the text is too short: expected at least 13600 bytes");
    expect_refused(base() + "--ranks 73", "73");
    for (const char* wrong :
         {"--steps abc", "--steps 010", "--steps 99999999999999999999", "--seed -1",
          "--workers 100000", "--warmup 1e3", "--checkpoint-every -1", "--eval-sequences 0"}) {
        expect_refused(base() + wrong, "expected a whole number");
    }
    expect_refused(base() + "--learning-rate nan", "--learning-rate: expected a finite number");
    expect_refused(base() + "--resume ''", "--resume: expected a name");
    expect_refused(base() + "--hidden 8192 --intermediate 8192 --experts 4096",
                   "the model needs at least ");
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
    expect_refused(base() + "--hidden 12", "12");
    expect_refused(base() + "--top-k 7", "--top-k: expected 1 to 6, found 7");
    expect_refused(base() + "--sequences 7", "--sequences: expected 8 to 4096, found 7");
    expect_refused(base() + "--sequence-length 100", "multiple of 128, found 100");
    expect_refused("--text " + (folder.path() / "text").string() + " --out " +
                       (folder.path() / "text").string(),
                   "text");
}

// What cannot be written is said before the training, not after it.
TEST_F(TrainRun, RefusesAFolderThatCannotTakeItsFiles) {
    for (const char* name : {"checkpoint.safetensors", "loss.svg"}) {
        const std::filesystem::path file = folder.path() / "out" / name;
        std::filesystem::create_directories(file);
        expect_refused(base(), std::string(name) + ": cannot be written: expected a new name");
        std::filesystem::remove(file);
    }
}

TEST_F(TrainRun, ALossThatIsNotFiniteEndsEveryRank) {
    const ProcessResult outcome =
        run(base() + "--ranks 4 --learning-rate 1e6 --clip 1e6 --warmup 0");
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("is not a finite number"), std::string::npos) << outcome.err;
}

// No rank waits as short as this for the others.
TEST_F(TrainRun, ARankThatDoesNotComeIsAFault) {
    const ProcessResult outcome = run(base() + "--ranks 4", "MOK_TIMEOUT_S=0.000001");
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_NE(outcome.err.find("mok: "), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

}  // namespace
}  // namespace mok
