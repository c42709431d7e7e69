// Sanitizers: asan

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "layer_test_file.h"
#include "mok_process.h"
#include "openmok/device.h"

// What `mok` refuses: exit status 2, one sentence on stderr that says what was wrong, no output
// file, and an output file that was there before untouched.
namespace mok {
namespace {

using Arguments = std::vector<std::string>;

class CliErrors : public testing::Test {
  protected:
    CliErrors() : tensors_(file_tensors(random_case(full_layer()))) {}

    std::string path(const char* name) const { return (folder_.path() / name).string(); }

    void expect_refused(const Arguments& arguments, const std::string& sentence_part,
                        const std::string& before = "") const {
        const ProcessResult r = run_mok(arguments, before);
        EXPECT_EQ(r.status, 2) << r.err;
        EXPECT_NE(r.err.find(sentence_part), std::string::npos)
            << "expected: " << sentence_part << "\nfound: " << r.err;
        EXPECT_EQ(std::ranges::count(r.err, '\n'), 1) << r.err;
        EXPECT_TRUE(r.err.starts_with("mok: ") && r.err.ends_with("\n")) << r.err;
    }

    // Runs on the file "in" with options; the output must neither appear nor change.
    void expect_run_refused(const Arguments& options, const std::string& sentence_part,
                            const std::string& before = "") const {
        SCOPED_TRACE(sentence_part);
        Arguments arguments{"run", path("in"), "-o", path("out")};
        arguments.insert(arguments.end(), options.begin(), options.end());
        std::filesystem::remove(path("out"));
        expect_refused(arguments, sentence_part, before);
        EXPECT_FALSE(std::filesystem::exists(path("out")));
        write_bytes(path("out"), "was here before");
        expect_refused(arguments, sentence_part, before);
        EXPECT_EQ(read_bytes(path("out")), "was here before");
        for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
            EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
        }
    }

    void expect_tensors_refused(const FileTensors& tensors,
                                const std::string& sentence_part) const {
        write_file(path("in"), tensors);
        expect_run_refused({}, sentence_part);
    }

    FileTensors without(std::initializer_list<const char*> names) const {
        FileTensors rest = tensors_;
        for (const char* name : names) rest.erase(name);
        return rest;
    }
    FileTensors with(const char* name, FileTensor tensor) const {
        FileTensors changed = tensors_;
        changed[name] = std::move(tensor);
        return changed;
    }
    FileTensors with_ids(int64_t at, int64_t id) const {
        FileTensors changed = tensors_;
        std::memcpy(changed["topk_ids"].bytes.data() + 8 * at, &id, 8);
        return changed;
    }

    TemporaryFolder folder_;
    FileTensors tensors_;
};

TEST_F(CliErrors, Commands) {
    expect_refused({}, "subcommand");
    expect_refused({"walk"}, "expected a command, found \"walk\"");
    expect_refused({"run"}, "required");
    expect_refused({"run", path("in")}, "--output");
    expect_refused({"run", "-o", path("out")}, "input is required");
    expect_refused({"run", path("in"), "-o", path("out"), "--speed"}, "--speed");
    expect_refused({"doctor", "--xml"}, "--xml");
    expect_refused({"doctor", "two\nlines"}, "two lines");
    expect_refused({"check", "--model", "none-of-them"}, "expected a model of deepseek-v3, ");
    expect_refused({"check", "--config", path("missing")}, "No such file or directory");
    expect_refused({"check", "--ranks", "1,0"},
                   "expected a whole number from 1 to 72, found \"0\"");
    expect_refused({"check", "--quick", "--inject-error", "outputs"},
                   "expected one of output, grad_hidden_states, grad_topk_weights");
}

TEST_F(CliErrors, Options) {
    write_file(path("in"), tensors_);
    for (const char* ranks :
         {"0", "73", "-1", "abc", "", "1.5", "99999999999999999999", "010", "0x8", "+2"}) {
        expect_run_refused(
            {"--ranks", ranks},
            std::string("--ranks: expected a whole number from 1 to 72, found \"") + ranks + "\"");
    }
    if (!why_no_cuda().empty()) {
        expect_run_refused(
            {"--backend", "cuda"},
            has_cuda_backend()
                ? "--backend cuda: CUDA device 0: expected a GPU with its driver, found none"
                : "--backend: expected auto or cpu, for this build has no CUDA backend");
    }
    expect_run_refused({"--backend", "cpu", "--virtual-ranks", "2"},
                       "--virtual-ranks: expected --backend cuda, found cpu");
    expect_run_refused({"--backend", "gpu"},
                       "--backend: expected auto, cpu or cuda, found \"gpu\"");
    expect_run_refused({"--precision", "fp8"},
                       "--precision: expected bf16, fp8_block or mxfp8, found \"fp8\"");
    for (const char* limit : {"nan", "0", "-1", "x", "-inf"}) {
        expect_run_refused({"--limit", limit}, "--limit: expected a number above 0, found");
    }
    expect_run_refused({"--limit", "1e-300"}, "activation.limit must be above 0");
    for (const char* alpha : {"nan", "inf", "", "1,5"}) {
        expect_run_refused({"--alpha", alpha}, "--alpha: expected a finite number, found");
    }
    expect_run_refused({"--beta", "inf"}, "--beta: expected a finite number");
    expect_run_refused({"--minibatch", "100"}, "minibatch_rows (b) must be");
    expect_run_refused({"--minibatch", "-128"}, "--minibatch: expected a whole number");
    expect_run_refused({"--macrobatch", "64"}, "macrobatch_rows (B) must be");
    expect_run_refused({"--macrobatch", "128", "--minibatch", "256"}, "at most macrobatch_rows");
    expect_run_refused({"--context-rows", "5"}, "context_rows (C) must be");
    expect_run_refused({"--context-rows", "-2"}, "--context-rows: expected a whole number");
    expect_run_refused({"--workers", "-1"}, "--workers: expected a whole number");
    expect_run_refused({"--seed", "x"}, "--seed: expected a whole number");
    const std::string rule = ": expected a number of seconds above 0 and at most 1000000, found \"";
    for (const std::string seconds : {"0", "nan", "-1", "5s", "1000001", "1e300", "1e999", "inf"}) {
        expect_run_refused({"--timeout", seconds}, "--timeout" + rule + seconds);
        expect_run_refused({}, "MOK_TIMEOUT_S" + rule + seconds, "MOK_TIMEOUT_S=" + seconds);
    }
    expect_run_refused({"--timeout", ""}, "--timeout" + rule + "\"");
    for (const char* command : {"bench --iterations 1 --tokens 8", "doctor", "check --quick"}) {
        const ProcessResult r = run_mok_line(command, "MOK_TIMEOUT_S=1e300");
        EXPECT_EQ(r.status, 2) << command;
        EXPECT_EQ(r.err, "mok: MOK_TIMEOUT_S" + rule + "1e300\"\n");
    }
}

TEST_F(CliErrors, VirtualRanksMeanTheSameInEveryCommand) {
    write_file(path("in"), tensors_);
    const std::vector<Arguments> commands{
        {"run", path("in"), "-o", path("out")},
        {"check", "--quick"},
        {"bench", "--iterations", "1", "--tokens", "8"},
        {"train", "--text", path("in"), "--out", path("trained")}};
    for (const Arguments& command : commands) {
        SCOPED_TRACE(command[0]);
        Arguments virtual_ranks = command;
        virtual_ranks.insert(virtual_ranks.end(), {"--backend", "cpu", "--virtual-ranks", "2"});
        expect_refused(virtual_ranks,
                       "--virtual-ranks: expected --backend cuda, found cpu, whose ranks --ranks "
                       "counts");
        virtual_ranks.insert(virtual_ranks.end(), {"--ranks", "2"});
        expect_refused(virtual_ranks, "excludes");
        const ProcessResult help = run_mok({command[0], "--help"});
        std::string words;  // without the line breaks of the help
        std::istringstream lines(help.out);
        for (std::string word; lines >> word;) words += word + ' ';
        EXPECT_NE(words.find("CUDA: ranks that share one GPU, instead of --ranks"),
                  std::string::npos)
            << help.out;
    }
    EXPECT_FALSE(std::filesystem::exists(path("out")));
    EXPECT_FALSE(std::filesystem::exists(path("trained")));
}

TEST_F(CliErrors, NoName) {
    for (const char* option : {"--model", "--config", "--dump", "--inject-error"}) {
        expect_refused({"check", "--quick", option, ""},
                       std::string(option) + ": expected a name, found \"\"");
    }
    expect_refused({"run", "", "-o", path("out")}, "input: expected a name, found \"\"");
    expect_refused({"run", path("in"), "-o", ""}, "--output: expected a name, found \"\"");
    expect_refused({"bench", "--json", ""}, "--json: expected a name, found \"\"");
}

TEST_F(CliErrors, Paths) {
    write_file(path("in"), tensors_);
    const auto run = [&](const std::string& in, const std::string& out, const char* part) {
        SCOPED_TRACE(part);
        expect_refused({"run", in, "-o", out}, part);
    };
    run(path("missing"), path("out"), "cannot be read: No such file or directory");
    run(folder_.path().string(), path("out"), "expected a regular file, found a folder");
    run("/dev/zero", path("out"), "expected a regular file, found a device or a pipe");
    EXPECT_FALSE(std::filesystem::exists(path("out")));
    run(path("in"), path("no/out"), "cannot be written: there is no folder");
    run(path("in"), folder_.path().string(), "found a folder");
    run(path("in"), "/dev/full", "found a device or a pipe");
    if (geteuid() != 0) {
        write_bytes(path("secret"), "x");
        std::filesystem::permissions(path("secret"), std::filesystem::perms::none);
        run(path("secret"), path("out"), "cannot be read: Permission denied");
    }
}

// By its own name, by another spelling of it, by a link; and nothing but the file decides.
TEST_F(CliErrors, InputAsOutput) {
    write_file(path("in"), tensors_);
    write_file(path("other"), tensors_);
    const std::string before = read_bytes(path("in"));
    std::filesystem::create_symlink("in", path("soft"));
    std::filesystem::create_hard_link(path("in"), path("hard"));
    for (const char* name : {"in", "./in", "soft", "hard"}) {
        SCOPED_TRACE(name);
        expect_refused({"run", path("in"), "-o", path(name)},
                       "expected another file than the inputs, found the input " + path("in"));
        EXPECT_EQ(read_bytes(path("in")), before);
    }
    EXPECT_EQ(run_mok({"run", path("in"), "-o", path("other")}).status, 0);

    write_bytes(path("config.json"), "{}");
    expect_refused({"plan", "--tokens-per-rank", "128", "--ranks", "1", "--sms", "2", "--config",
                    path("config.json"), "--svg", path("config.json")},
                   "expected another file than the inputs");
    expect_refused({"check", "--config", path("config.json"), "--dump", path("config.json")},
                   "expected another file than the inputs");
    EXPECT_EQ(read_bytes(path("config.json")), "{}");
}

// The file cannot grow: as on a full disk, write() fails in the middle.
TEST_F(CliErrors, NoRoomForTheOutput) {
    write_file(path("in"), tensors_);
    expect_run_refused({}, "cannot be written: File too large", "ulimit -f 1;");
}

// What was printed went into the output file, which had been given the closed stream's number.
TEST_F(CliErrors, ClosedStandardStreams) {
    write_file(path("in"), tensors_);
    const Arguments run{"run", path("in"), "-o", path("out")};
    ASSERT_EQ(run_mok(run).status, 0);
    const std::string want = read_bytes(path("out"));
    for (const char* closed : {"exec <&-;", "exec 2>&-;", "exec >&-;", "exec <&- >&- 2>&-;"}) {
        SCOPED_TRACE(closed);
        std::filesystem::remove(path("out"));
        const ProcessResult r = run_mok(run, closed);
        const bool can_print = std::string(closed).find(" >&-") == std::string::npos;
        EXPECT_EQ(r.status, can_print ? 0 : 1) << r.err;
        EXPECT_EQ(read_bytes(path("out")), want);
        // A sentence that cannot be printed was an abort.
        EXPECT_EQ(run_mok({"walk"}, closed).status, 2);
    }
}

TEST_F(CliErrors, StandardOutputThatCannotBeWritten) {
    const ProcessResult r = run_mok({"doctor"}, "exec >/dev/full;");
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.err, "mok: standard output: cannot be written\n");
}

TEST_F(CliErrors, Names) {
    expect_tensors_refused(
        with("gate_biases", tensors_.at("gate_bias")),
        "tensor \"gate_biases\": expected only the names hidden_states, topk_ids");
    expect_tensors_refused({}, "tensor \"hidden_states\": expected it in the file, found none");
    for (const char* name :
         {"hidden_states", "topk_ids", "topk_weights", "gate_proj", "up_proj", "down_proj"}) {
        expect_tensors_refused(without({name}), std::string("tensor \"") + name +
                                                    "\": expected it in the file, found none");
    }
    for (const char* name : {"shared_gate_proj", "shared_up_proj", "shared_down_proj"}) {
        expect_tensors_refused(without({name}), "shared_down_proj together, found only some");
    }
    expect_tensors_refused(without({"shared_gate_proj", "shared_up_proj", "shared_down_proj"}),
                           "expected the shared expert's tensors beside it");
}

TEST_F(CliErrors, DtypesAndShapes) {
    for (const auto& [name, tensor] : tensors_) {
        const std::string place = "tensor \"" + name + "\": expected ";
        FileTensor changed = tensor;
        changed.dtype = io::DType::F64;
        int64_t elements = 1;
        for (const int64_t size : tensor.shape) elements *= size;
        changed.bytes = std::string(8 * elements, '\0');
        expect_tensors_refused(with(name.c_str(), changed), place + "dtype");

        changed = tensor;
        changed.shape.push_back(1);
        expect_tensors_refused(with(name.c_str(), changed), place);
        changed.shape = {elements};
        if (tensor.shape.size() > 1) expect_tensors_refused(with(name.c_str(), changed), place);
    }
    FileTensor half = tensors_.at("topk_weights");
    half.dtype = io::DType::BF16;
    half.bytes.resize(half.bytes.size() / 2);
    expect_tensors_refused(with("topk_weights", half),
                           "tensor \"topk_weights\": expected dtype F32, found BF16");
    // A row less, in every tensor whose size another one has set.
    for (const char* name :
         {"topk_ids", "topk_weights", "up_proj", "down_proj", "gate_bias", "up_bias", "down_bias",
          "shared_up_proj", "shared_down_proj", "shared_weights", "grad_output"}) {
        FileTensor shorter = tensors_.at(name);
        shorter.bytes.resize(shorter.bytes.size() / shorter.shape[0] * (shorter.shape[0] - 1));
        --shorter.shape[0];
        expect_tensors_refused(with(name, shorter),
                               std::string("tensor \"") + name + "\": expected");
    }
}

TEST_F(CliErrors, WidthsThatTheLayerCannotTake) {
    cli::CaseOptions o = small_layer();
    o.shape.hidden = 60;
    expect_tensors_refused(file_tensors(random_case(o)),
                           "hidden (H) must be a positive multiple of 8");
    o = small_layer();
    o.shape.intermediate = 4;
    expect_tensors_refused(file_tensors(random_case(o)),
                           "intermediate (I) must be a positive multiple of 8");
    o = small_layer();
    o.shape.shared_intermediate = 4;
    expect_tensors_refused(file_tensors(random_case(o)), "shared_intermediate (S) must be");
}

TEST_F(CliErrors, Ids) {
    expect_tensors_refused(
        with_ids(7, 5),
        "topk_ids of rank 0, token 3, choice 1: expected -1 or an expert below 5, "
        "found 5");
    expect_tensors_refused(with_ids(0, -2), "token 0, choice 0");
    expect_tensors_refused(with_ids(139, int64_t{1} << 40), "token 69, choice 1");
    write_file(path("in"), with_ids(139, 99));
    expect_run_refused({"--ranks", "3"}, "topk_ids of rank 2, token 22, choice 1");
}

TEST_F(CliErrors, TokensPerRank) {
    const auto split = [&](std::vector<int64_t> tokens) {
        return with("tokens_per_rank", {io::DType::I64, {std::ssize(tokens)}, bytes_of(tokens)});
    };
    expect_tensors_refused(split({30, 39}),
                           "tokens_per_rank: expected a sum of 70 tokens, found 69");
    expect_tensors_refused(split({71, -1}), "tokens_per_rank: expected entries from 0 to 70");
    expect_tensors_refused(split({}), "expected one entry for every rank, found none");
    expect_tensors_refused(split(std::vector<int64_t>(73, 0)), "ranks: expected 1 to 72, found 73");
    write_file(path("in"), split({30, 40}));
    expect_run_refused({"--ranks", "3"},
                       "tokens_per_rank: expected 3 entries, one a rank, found 2");
}

// Case 28.
TEST_F(CliErrors, FilesThatAreNoSafetensors) {
    std::mt19937 random(28);
    for (const size_t size : {0u, 1u, 7u, 8u, 9u, 100u, 5000u}) {
        std::string bytes(size, '\0');
        for (char& c : bytes) c = static_cast<char>(random());
        write_bytes(path("in"), bytes);
        expect_run_refused({}, path("in"));
    }
    write_file(path("in"), tensors_);
    const std::string whole = read_bytes(path("in"));
    for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{200}}) {
        write_bytes(path("in"), whole.substr(0, size));
        expect_run_refused({}, path("in"));
    }
    write_bytes(path("in"), whole + "x");
    expect_run_refused({}, "bytes of data");
    std::string huge = whole;
    huge[7] = '\x7f';
    write_bytes(path("in"), huge);
    expect_run_refused({}, "expected a safetensors header of at most 100000000 bytes");
}

TEST_F(CliErrors, TensorsThatOverlap) {
    const std::string header = R"({"gate_proj":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                               R"("up_proj":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    write_bytes(path("in"), bytes + header + std::string(12, 'x'));
    expect_run_refused({}, "an overlap");
}

// A sparse file of a terabyte: refused for its size before anything of it is allocated.
TEST_F(CliErrors, MoreThanTheMachineHas) {
    const int64_t experts = 1 << 17, width = 1024, expert_bytes = experts * width * width * 2;
    auto entry = [at = int64_t{0}](const char* name, const char* dtype, const std::string& shape,
                                   int64_t bytes) mutable {
        std::string text = R"("NAME":{"dtype":"DTYPE","shape":[SHAPE],"data_offsets":[)";
        text.replace(text.find("NAME"), 4, name);
        text.replace(text.find("DTYPE"), 5, dtype);
        text.replace(text.find("SHAPE"), 5, shape);
        text += std::to_string(at);
        at += bytes;
        return text + "," + std::to_string(at) + "]}";
    };
    std::string header = "{";
    header += entry("hidden_states", "BF16", "8,1024", 8 * width * 2) + ",";
    header += entry("grad_output", "BF16", "8,1024", 8 * width * 2) + ",";
    header += entry("topk_ids", "I64", "8,1", 64) + ",";
    header += entry("topk_weights", "F32", "8,1", 32) + ",";
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        header += entry(name, "BF16", "131072,1024,1024", expert_bytes);
        header += std::string(name) == "down_proj" ? "}" : ",";
    }
    header.append((8 - header.size() % 8) % 8, ' ');
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    write_bytes(path("in"), bytes + header);
    std::error_code error;
    const int64_t data = 4 * 8 * width + 96 + 3 * expert_bytes;
    std::filesystem::resize_file(path("in"), 8 + length + data, error);
    if (error) GTEST_SKIP() << "this file system has no sparse file of that size";
    expect_run_refused({}, "the layer needs at least");
}

}  // namespace
}  // namespace mok
