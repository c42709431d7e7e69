// Sanitizers: asan

#include <gtest/gtest.h>

#include <set>

#include "cli/common/random_case.h"
#include "layer_test_file.h"
#include "mok_process.h"

// `mok run` as a user runs it: names, dtypes and shapes as documented, values as the FP64 oracle's.
namespace mok {
namespace {

using cli::CaseOptions;
using cli::GlobalResult;
using cli::RandomCase;

const std::pair<const char*, std::vector<float> GlobalResult::*> kF32Outputs[] = {
    {"grad_topk_weights", &GlobalResult::d_topk_weights},
    {"grad_shared_weights", &GlobalResult::d_shared_weights},
    {"grad_gate_proj", &GlobalResult::d_gate},
    {"grad_up_proj", &GlobalResult::d_up},
    {"grad_down_proj", &GlobalResult::d_down},
    {"grad_gate_bias", &GlobalResult::d_gate_bias},
    {"grad_up_bias", &GlobalResult::d_up_bias},
    {"grad_down_bias", &GlobalResult::d_down_bias},
    {"grad_shared_gate_proj", &GlobalResult::d_shared_gate},
    {"grad_shared_up_proj", &GlobalResult::d_shared_up},
    {"grad_shared_down_proj", &GlobalResult::d_shared_down},
};

class CliRun : public testing::Test {
  protected:
    std::string path(const char* name) const { return (folder_.path() / name).string(); }

    // The bytes of the output file.
    std::string run(const FileTensors& tensors, std::vector<std::string> options = {}) {
        write_file(path("in"), tensors);
        std::filesystem::remove(path("out"));
        std::vector<std::string> arguments{"run", path("in"), "-o", path("out")};
        arguments.insert(arguments.end(), options.begin(), options.end());
        last_ = run_mok(arguments);
        EXPECT_EQ(last_.status, 0) << last_.err;
        EXPECT_EQ(last_.err, "");
        return read_bytes(path("out"));
    }

    // The output file has every tensor that the input asks for, of the documented form and of the
    // oracle's values, and no other.
    void expect_right(const RandomCase& c, const FileTensors& input) const {
        const io::SafetensorsFile file(path("out"));
        std::set<std::string> want{"output"};
        GlobalResult found;
        found.output = tensor<Bf16>(file, "output", io::DType::BF16, input.at("hidden_states"));
        if (input.contains("grad_output")) {
            want.insert("grad_hidden_states");
            found.d_x = tensor<Bf16>(file, "grad_hidden_states", io::DType::BF16,
                                     input.at("hidden_states"));
            for (const auto& [name, member] : kF32Outputs) {
                const auto source = input.find(std::string(name).substr(5));
                if (source == input.end()) continue;
                want.insert(name);
                found.*member = tensor<float>(file, name, io::DType::F32, source->second);
            }
        }
        const std::vector<std::string> names = file.names();
        EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), want);
        for (const Mismatch& m : cli::compare_with_oracle(c, found)) {
            ADD_FAILURE() << m.sentence();
        }
    }

    ProcessResult last_;

  private:
    template <class T>
    static std::vector<T> tensor(const io::SafetensorsFile& file, const char* name, io::DType dtype,
                                 const FileTensor& of_shape) {
        const auto entry = file.find(name);
        if (!entry) {
            ADD_FAILURE() << name << " is not in the output";
            return {};
        }
        EXPECT_EQ(entry->dtype, dtype) << name;
        EXPECT_EQ(entry->shape, of_shape.shape) << name;
        return io::copy_elements<T>(*entry);
    }

    TemporaryFolder folder_;
};

TEST_F(CliRun, EveryOptionalTensor) {
    const RandomCase c = random_case(full_layer());
    const FileTensors tensors = file_tensors(c);
    ASSERT_EQ(tensors.size(), 14u);
    run(tensors);
    expect_right(c, tensors);
    EXPECT_NE(last_.out.find(has_cuda_backend() ? "backend: cpu (auto: CUDA device 0: expected"
                                                : "backend: cpu (auto: this build has no CUDA "
                                                  "backend)"),
              std::string::npos)
        << last_.out;
}

TEST_F(CliRun, ForwardOnly) {
    CaseOptions o = full_layer();
    o.backward = false;
    const RandomCase c = random_case(o);
    run(file_tensors(c), {"--backend", "cpu"});
    expect_right(c, file_tensors(c));
}

TEST_F(CliRun, RequiredTensorsOnly) {
    const RandomCase c = random_case(small_layer());
    const FileTensors tensors = file_tensors(c);
    ASSERT_EQ(tensors.size(), 7u);  // grad_output included
    run(tensors);
    expect_right(c, tensors);
}

TEST_F(CliRun, EachOptionalTensorAlone) {
    for (const char* kept : {"gate_bias", "up_bias", "down_bias", "shared"}) {
        SCOPED_TRACE(kept);
        RandomCase c = random_case(full_layer());
        const auto drop = [&](const char* name, std::vector<Bf16>& t) {
            if (std::string(name) != kept) t.clear();
        };
        drop("gate_bias", c.gate_bias);
        drop("up_bias", c.up_bias);
        drop("down_bias", c.down_bias);
        c.shared_weights.clear();
        if (std::string(kept) != "shared") {
            c.shared_gate.clear();
            c.shared_up.clear();
            c.shared_down.clear();
            c.shape.shared_intermediate = 0;
        }
        run(file_tensors(c));
        expect_right(c, file_tensors(c));
    }
}

TEST_F(CliRun, F32IsRoundedOnceAndI32IdsAreTheSame) {
    const RandomCase c = random_case(full_layer());
    FileTensors tensors = file_tensors(c);
    const std::string want = run(tensors);
    for (auto& [name, tensor] : tensors) {
        if (tensor.dtype == io::DType::BF16) tensor = widened(tensor);
    }
    tensors["topk_ids"].dtype = io::DType::I32;
    tensors["topk_ids"].bytes = bytes_of(c.topk_ids);
    EXPECT_EQ(run(tensors, {"--ranks", "1"}), want);
}

TEST_F(CliRun, RanksDoNotChangeTheFile) {
    CaseOptions o = full_layer();
    o.shape.shared_intermediate = 0;
    o.shared_weights = false;
    const FileTensors tensors = file_tensors(random_case(o));
    const std::string want = run(tensors, {"--ranks", "1"});
    for (const char* ranks : {"2", "3", "7", "72"})
        EXPECT_EQ(run(tensors, {"--ranks", ranks}), want);
}

// With a shared expert: rank boundaries at multiples of 128.
TEST_F(CliRun, TokensPerRank) {
    CaseOptions o = full_layer();
    o.num_tokens = 400;
    const RandomCase c = random_case(o);
    FileTensors tensors = file_tensors(c);
    const std::string want = run(tensors);
    expect_right(c, tensors);
    for (const std::vector<int64_t>& split :
         {std::vector<int64_t>{256, 144}, {128, 0, 272}, {0, 128, 256, 16}}) {
        tensors["tokens_per_rank"] = {io::DType::I64, {std::ssize(split)}, bytes_of(split)};
        EXPECT_EQ(run(tensors), want);
        EXPECT_NE(last_.out.find("ranks: " + std::to_string(split.size())), std::string::npos);
        EXPECT_EQ(run(tensors, {"--ranks", std::to_string(split.size())}), want);
    }
    const std::vector<int64_t> anywhere{1, 77, 322};
    tensors["tokens_per_rank"] = {io::DType::I64, {3}, bytes_of(anywhere)};
    run(tensors);
    tensors.erase("tokens_per_rank");
    expect_right(c, tensors);
}

TEST_F(CliRun, ActivationOptions) {
    CaseOptions o = full_layer();
    o.shape.activation = {1.5f, 1.702f, 1.0f};
    const RandomCase c = random_case(o);
    run(file_tensors(c), {"--limit", "1.5", "--alpha", "1.702", "--beta", "1"});
    expect_right(c, file_tensors(c));
}

TEST_F(CliRun, TuningDoesNotChangeTheFile) {
    CaseOptions o = full_layer();
    o.num_tokens = 500;
    const FileTensors tensors = file_tensors(random_case(o));
    const std::string want = run(tensors);
    EXPECT_EQ(run(tensors, {"--minibatch", "128", "--macrobatch", "256"}), want);
    EXPECT_EQ(run(tensors, {"--context-rows", "0", "--macrobatch", "128"}), want);
    EXPECT_EQ(run(tensors, {"--context-rows", "384", "--workers", "3"}), want);
    EXPECT_EQ(run(tensors, {"--seed", "11"}), want);
    EXPECT_NE(last_.out.find("order: random from seed 11"), std::string::npos);
}

TEST_F(CliRun, UnalignedTensorsAreCopied) {
    const FileTensors tensors = file_tensors(random_case(full_layer()));
    const std::string want = run(tensors);
    std::string bytes = read_bytes(path("in"));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    bytes.insert(bytes.begin() + 8 + static_cast<int64_t>(header),
                 ' ');  // every tensor now begins at an odd address
    ++header;
    std::memcpy(bytes.data(), &header, 8);
    write_bytes(path("odd"), bytes);
    const ProcessResult r = run_mok({"run", path("odd"), "-o", path("out")});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(read_bytes(path("out")), want);
}

TEST_F(CliRun, NoTokens) {
    FileTensors tensors = file_tensors(random_case(full_layer()));
    for (const char* name :
         {"hidden_states", "topk_ids", "topk_weights", "shared_weights", "grad_output"}) {
        tensors[name].shape[0] = 0;
        tensors[name].bytes.clear();
    }
    run(tensors, {"--ranks", "2"});
    const io::SafetensorsFile file(path("out"));
    EXPECT_EQ(file.find("output")->shape, (std::vector<int64_t>{0, 64}));
    for (const float v : io::copy_elements<float>(*file.find("grad_down_proj"))) EXPECT_EQ(v, 0.0f);
    for (const float v : io::copy_elements<float>(*file.find("grad_shared_up_proj"))) {
        EXPECT_EQ(v, 0.0f);
    }
}

TEST_F(CliRun, InFp8) {
    for (const Precision precision : {Precision::Fp8Block, Precision::Mxfp8}) {
        CaseOptions o = full_layer();
        o.shape.precision = precision;
        const RandomCase c = random_case(o);
        run(file_tensors(c), {"--precision", precision_name(precision)});
        expect_right(c, file_tensors(c));
        const io::SafetensorsFile file(path("out"));
        EXPECT_EQ(file.metadata().at("precision"), precision_name(precision));
    }
}

TEST_F(CliRun, MetadataSaysTokensPerExpert) {
    const RandomCase c = random_case(full_layer());
    run(file_tensors(c));
    std::vector<int> counts(5);
    for (const int32_t id : c.topk_ids) {
        if (id >= 0) ++counts[id];
    }
    std::string want;
    for (const int count : counts) {
        if (!want.empty()) want += ',';
        want += std::to_string(count);
    }
    const io::SafetensorsFile file(path("out"));
    EXPECT_EQ(file.metadata().at("tokens_per_expert"), want);
    EXPECT_EQ(file.metadata().at("precision"), "bf16");
}

}  // namespace
}  // namespace mok
