// Training by ranks in processes: here every rank is a thread with a model of its own, in a group
// that exchanges bytes as processes do; the right result is that of one rank alone.
// Sanitizers: asan tsan
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cli/common/rank_threads.h"
#include "cli/train/training.h"
#include "mok_process.h"

namespace mok::train {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Config small() {
    Config config;
    config.num_experts = 6;
    config.hidden = 24;
    config.intermediate = 16;
    config.window = 3;
    config.ngram_order = 3;
    config.ngram_rows = 64;
    config.num_sequences = 9;
    config.steps = 4;
    config.warmup_steps = 1;
    return config;
}

std::vector<uint8_t> random_text(uint64_t state) {
    std::vector<uint8_t> text(30'000);
    for (uint8_t& byte : text) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        byte = static_cast<uint8_t>('a' + (state >> 61));
    }
    return text;
}

// What a rank ends with.
struct Outcome {
    std::string hash;
    std::vector<float> losses;
    RunResult result;
    std::string sentence;  // of what it threw
};

class TrainRanks : public testing::Test {
  protected:
    // Something that a rank does before it trains.
    using Change = std::function<void(int rank, Config&, std::vector<uint8_t>&, Model*)>;

    RunOptions options(const std::string& checkpoint) const {
        RunOptions o;
        o.num_ranks = 1;
        o.max_workers = 1;
        o.eval_sequences = 13;
        o.checkpoint = folder_.path() / checkpoint;
        return o;
    }

    Outcome train_one(const Config& config, const RunOptions& o,
                      const std::string& resumed = "") const {
        return train_one(config, random_text(1), o, resumed, [](Model&) {});
    }

    // Each rank has options of its own: its checkpoint would be "rank<r>".
    std::vector<Outcome> train_apart(int num_ranks, const Config& config, RunOptions o,
                                     const std::string& resumed = "",
                                     const Change& change = {}) const {
        std::vector<Outcome> outcomes(num_ranks);
        cli::run_ranks(Group::in_process(num_ranks), [&](const Group& group) {
            const int rank = group.rank();
            Config own = config;
            std::vector<uint8_t> text = random_text(1);
            if (change) change(rank, own, text, nullptr);
            RunOptions of_rank = o;
            of_rank.processes = group;
            of_rank.num_ranks = num_ranks;
            of_rank.checkpoint = folder_.path() / ("rank" + std::to_string(rank));
            try {
                outcomes[rank] = train_one(own, text, of_rank, resumed, [&](Model& model) {
                    if (change) change(rank, own, text, &model);
                });
            } catch (const InputError& e) {
                outcomes[rank].sentence = e.what();
            } catch (const TimeoutError&) {
                throw;
            } catch (const Error& e) {
                outcomes[rank].sentence = std::string("Error: ") + e.what();
            }
        });
        return outcomes;
    }

    std::string bytes(const std::string& name) const { return read_bytes(folder_.path() / name); }
    bool exists(const std::string& name) const {
        return std::filesystem::exists(folder_.path() / name);
    }

    TemporaryFolder folder_;

  private:
    Outcome train_one(const Config& config, const std::vector<uint8_t>& bytes, const RunOptions& o,
                      const std::string& resumed, const std::function<void(Model&)>& change) const {
        const Text text(bytes, config, "text");
        Model model(config, text);
        RunState state;
        if (!resumed.empty()) {
            state =
                read_checkpoint(folder_.path() / resumed, config, text.sha256(), model.parameters);
        }
        change(model);
        Outcome outcome;
        outcome.result = train(model, state, o);
        outcome.hash = model.parameters.hash();
        outcome.losses = state.losses;
        return outcome;
    }
};

void expect_equal(const Evaluation& found, const Evaluation& expected) {
    EXPECT_EQ(found.bits_per_byte, expected.bits_per_byte);
    EXPECT_EQ(found.tokens_per_expert, expected.tokens_per_expert);
}

void expect_equal(const Outcome& found, const Outcome& expected) {
    EXPECT_EQ(found.sentence, "");
    EXPECT_EQ(found.hash, expected.hash);
    EXPECT_EQ(found.losses, expected.losses);
    expect_equal(found.result.train, expected.result.train);
    expect_equal(found.result.held_out, expected.result.held_out);
    expect_equal(found.result.held_out_zeroed, expected.result.held_out_zeroed);
}

// 12: ranks without experts, and without sequences.
TEST_F(TrainRanks, EndWithTheBitsOfOneRank) {
    for (const int64_t shared : {0, 8}) {
        Config config = small();
        config.shared_intermediate = shared;
        const Outcome expected = train_one(config, options("one"));
        EXPECT_EQ(expected.losses.size(), 4u);
        EXPECT_GT(expected.result.held_out.bits_per_byte, 0.0);
        for (const int ranks : {2, 3, 12}) {
            SCOPED_TRACE(testing::Message() << ranks << " ranks, shared expert " << shared);
            for (const Outcome& found : train_apart(ranks, config, options(""))) {
                expect_equal(found, expected);
            }
            EXPECT_EQ(bytes("rank0"), bytes("one"));
            EXPECT_FALSE(exists("rank1"));
        }
    }
}

TEST_F(TrainRanks, GoOnFromACheckpointOfAnyNumberOfRanks) {
    const Config config = small();
    const Outcome expected = train_one(config, options("one"));
    RunOptions part = options("");
    part.stop_after = 2;
    part.checkpoint_every = 1;
    train_apart(3, config, part);
    std::filesystem::rename(folder_.path() / "rank0", folder_.path() / "part");
    for (const int ranks : {2, 4}) {
        for (const Outcome& found : train_apart(ranks, config, options(""), "part")) {
            expect_equal(found, expected);
        }
        EXPECT_EQ(bytes("rank0"), bytes("one"));
    }
    expect_equal(train_one(config, options("resumed"), "part"), expected);
    EXPECT_EQ(bytes("resumed"), bytes("one"));
}

TEST_F(TrainRanks, RefuseToTrainApart) {
    const std::map<std::string, Change> changes{
        {"expected seed 1, found seed 2", [](int rank, Config& config, std::vector<uint8_t>&,
                                             Model*) { config.seed = rank == 2 ? 2 : 1; }},
        {"expected text_sha256 ",
         [](int rank, Config&, std::vector<uint8_t>& text, Model*) {
             if (rank == 2) text[5] ^= 1;
         }},
        {"expected hash ",
         [](int rank, Config&, std::vector<uint8_t>&, Model* model) {
             if (rank == 2 && model != nullptr) model->parameters.values[3] += 1.0f;
         }},
    };
    for (const auto& [sentence, change] : changes) {
        for (const Outcome& o : train_apart(3, small(), options(""), "", change)) {
            EXPECT_THAT(o.sentence, StartsWith("rank 2 differs from rank 0: " + sentence));
        }
        EXPECT_FALSE(exists("rank0"));
    }
}

// Adam's moments are no part of the hash, so it is the first step that tells the ranks apart.
TEST_F(TrainRanks, NoCheckpointOfRanksThatCameApart) {
    const Change change = [](int rank, Config&, std::vector<uint8_t>&, Model* model) {
        if (rank == 1 && model != nullptr) model->parameters.first_moments[3] += 1.0f;
    };
    RunOptions o = options("");
    o.checkpoint_every = 2;
    for (const Outcome& found : train_apart(2, small(), o, "", change)) {
        EXPECT_THAT(found.sentence,
                    StartsWith("Error: after step 2, rank 1 differs from rank 0: expected hash"));
    }
    EXPECT_FALSE(exists("rank0"));
}

TEST_F(TrainRanks, ALossThatIsNotFiniteIsSaidByAll) {
    Config config = small();
    config.learning_rate = 1e6;
    config.max_grad_norm = 1e6;
    config.warmup_steps = 0;
    config.steps = 50;
    for (const Outcome& o : train_apart(2, config, options(""))) {
        EXPECT_THAT(o.sentence, HasSubstr("is not a finite number"));
    }
    EXPECT_FALSE(exists("rank0"));
}

}  // namespace
}  // namespace mok::train
