#include "cli/check_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "cli/backend.h"
#include "cli/check/run_checks.h"
#include "cli/common/scaled_shape.h"
#include "cli/group_options.h"
#include "cli/io/atomic_file.h"
#include "cli/io/model_config.h"
#include "cli/io/output_name.h"
#include "cli/option_types.h"
#include "cli/precision_option.h"
#include "cli/rank_place.h"

namespace mok::cli {
namespace {

struct Options {
    std::string model, config, backend = "auto", precision = "bf16";
    std::vector<int> ranks, virtual_ranks;
    std::optional<int> num_repeats;
    std::optional<int64_t> num_tokens;
    bool quick = false;
    int64_t seed = 1;
    std::optional<std::string> timeout;
    CheckExtras extras;
};

// Without a model: the shape of the conditions in tests, and a shared expert of another width.
io::ModelShape default_model() {
    io::ModelShape model;
    model.name = "default";
    model.hidden = 256;
    model.intermediate = 128;
    model.experts = 8;
    model.top_k = 2;
    model.shared_intermediate = 72;
    return model;
}

io::ModelShape chosen_model(const Options& o) {
    if (!o.model.empty()) return io::named_model(o.model);
    return o.config.empty() ? default_model() : io::read_model_config(o.config);
}

// What is run on one rank and on a group of processes: other numbers of ranks would need others.
void require_one_group(const std::vector<int>& ranks) {
    const int most = *std::ranges::max_element(ranks);
    for (const int r : ranks) {
        if (r == 1 || r == most) continue;
        throw std::invalid_argument(fmt::format(
            "--ranks: expected 1 and one other number with --backend cuda, which starts a process "
            "per rank (--virtual-ranks: ranks that share a GPU), found {}",
            fmt::join(ranks, ",")));
    }
}

std::vector<int> ranks_of(const Options& o, Backend backend) {
    const std::vector<int> by_default{1, 2, 4};
    if (backend == Backend::Cpu) {
        if (!o.virtual_ranks.empty()) refuse_virtual_ranks_on_cpu();
        return o.ranks.empty() ? by_default : o.ranks;
    }
    const std::optional<int> launched = launched_ranks();
    if (!o.virtual_ranks.empty()) {
        if (launched) refuse_launched("--virtual-ranks", *launched);
        return o.virtual_ranks;
    }
    if (o.ranks.empty()) return launched ? std::vector<int>{1, *launched} : by_default;
    require_one_group(o.ranks);
    if (launched) {
        require_launched("--ranks", *std::ranges::max_element(o.ranks), *launched);
    }
    return o.ranks;
}

// Ranks that --ranks counts on CUDA are processes; what runs on one rank needs no other.
bool are_processes(const Options& o, const CheckOptions& c) {
    return c.device.kind == Device::Kind::Cuda && !o.ranks.empty() &&
           *std::ranges::max_element(c.ranks) > 1;
}

CheckOptions check_options(const Options& o, const io::ModelShape& model,
                           const BackendChoice& choice) {
    const ScaleBounds bounds = o.quick ? ScaleBounds{256, 8} : ScaleBounds{};
    CheckOptions c;
    c.shape = scaled_shape(model, bounds);
    c.shape.precision = precision_of(o.precision);
    c.num_tokens = o.num_tokens.value_or(o.quick ? 300 : 600);
    c.ranks = ranks_of(o, choice.backend);
    c.num_repeats = o.num_repeats.value_or(o.quick ? 5 : 20);
    c.quick = o.quick;
    c.seed = static_cast<uint64_t>(o.seed);
    c.group = group_options(o.timeout);
    c.device = choice.device;
    return c;
}

void print_shape(const io::ModelShape& model, const CheckOptions& c, const BackendChoice& choice) {
    const LayerShape& s = c.shape;
    fmt::print("layer: {} (hidden {}, intermediate {}, {} experts, top-{}, shared expert {})\n",
               model.name, model.hidden, model.intermediate, model.experts, model.top_k,
               model.shared_intermediate);
    fmt::print(
        "checked as: hidden {}, intermediate {}, {} experts, top-{}, shared expert {}; {} tokens; "
        "ranks {}{}; backend {}, {}\n",
        s.hidden, s.intermediate, s.num_experts, s.top_k, s.shared_intermediate, c.num_tokens,
        fmt::join(c.ranks, ", "), c.processes ? " in processes" : "", backend_name(choice.backend),
        precision_name(s.precision));
    for (const std::string& sentence : left_out_checks(c)) fmt::print("left out: {}\n", sentence);
    fmt::print("\n");
}

void print_table(const std::vector<CheckOutcome>& outcomes) {
    fmt::print("{:<44}{:<24}{:>6}{:>10}  result\n", "check", "compared with", "runs", "seconds");
    for (const CheckOutcome& o : outcomes) {
        fmt::print("{:<44}{:<24}{:>6}{:>10.2f}  {}\n", o.name, o.against, o.num_trials, o.seconds,
                   o.num_failed == 0 ? "PASS" : fmt::format("FAIL ({})", o.num_failed));
    }
    for (const CheckOutcome& o : outcomes) {
        for (const std::string& sentence : o.sentences) {
            fmt::print("\n{}: {}\n", o.name, sentence);
        }
    }
}

void check(const io::ModelShape& model, const CheckOptions& options, const BackendChoice& choice,
           const CheckExtras& extras) {
    print_shape(model, options, choice);
    std::fflush(stdout);
    const std::vector<CheckOutcome> outcomes = run_checks(make_checks(options), extras);
    print_table(outcomes);
    int num_failed = 0;
    for (const CheckOutcome& outcome : outcomes) num_failed += outcome.num_failed > 0 ? 1 : 0;
    if (num_failed > 0) {
        throw std::runtime_error(
            fmt::format("check: {} of {} checks failed", num_failed, outcomes.size()));
    }
    fmt::print("\nall {} checks passed\n", outcomes.size());
}

// Every rank runs and compares everything; rank 0 alone prints and writes.
void check_as_rank(const io::ModelShape& model, CheckOptions options, const BackendChoice& choice,
                   CheckExtras extras) {
    const Group group = join_ranks(options.group);
    options.processes = group;
    options.device = group.device();
    if (group.rank() != 0) {
        extras.dump.clear();
        extras.progress.write = [](std::string_view) {};
    }
    run_rank(group, [&] { check(model, options, choice, extras); });
}

void run_check(const Options& o) {
    const BackendChoice choice = choose_rank_backend(o.backend);
    io::refuse_input_as_output(o.extras.dump, {o.config});
    const io::ModelShape model = chosen_model(o);
    const CheckOptions options = check_options(o, model, choice);
    if (launched_ranks()) return check_as_rank(model, options, choice, o.extras);
    if (!o.extras.dump.empty()) const io::AtomicFile can_be_written(o.extras.dump);
    if (are_processes(o, options)) {
        return run_as_processes(*std::ranges::max_element(options.ranks));
    }
    check(model, options, choice, o.extras);
}

}  // namespace

void add_check_command(CLI::App& app) {
    const auto o = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "check", "Check the layer against an FP64 oracle and for equal bits however it is run.");
    command->footer(
        "The shape is the model's scaled down: hidden at most 512 and 16 experts (--quick: 256 and "
        "8), the other\nwidths in proportion. A mismatch names tensor, coordinate, both values and "
        "the task that wrote it.\nExit status: 0 all passed, 1 a check failed, 2 bad input, 3 a "
        "rank "
        "that did not come.");
    CLI::Option* model = command->add_option("--model", o->model, "A named model, e.g. kimi-k2.7")
                             ->type_name("NAME")
                             ->check(a_name());
    command->add_option("--config", o->config, "A Hugging Face config.json")
        ->type_name("FILE")
        ->check(a_name())
        ->excludes(model);
    command
        ->add_option("--backend", o->backend,
                     "auto, cpu or cuda; auto takes cuda where there is a GPU for it, else cpu")
        ->type_name("NAME")
        ->capture_default_str();
    add_precision_option(*command, o->precision);
    command
        ->add_option(
            "--ranks", o->ranks,
            "Numbers of ranks, threads (1,2,4); with cuda processes with a GPU each: 1 and "
            "one other number")
        ->delimiter(',')
        ->type_name("R,...")
        ->check(whole_number(1, 72));
    command
        ->add_option("--virtual-ranks", o->virtual_ranks, fmt::format("{} (1,2,4)", kVirtualRanks))
        ->delimiter(',')
        ->type_name("V,...")
        ->check(whole_number(1, 72))
        ->excludes("--ranks");
    command->add_option("--repeat", o->num_repeats, "Runs under random stalls (20; --quick: 5)")
        ->type_name("n")
        ->check(whole_number(1, 100000));
    // The oracle's bounds are on roundings that average out: a weight gradient of a few rows alone
    // can exceed them.
    command->add_option("--tokens", o->num_tokens, "Tokens of all ranks (600; --quick: 300)")
        ->type_name("N")
        ->check(whole_number(128, 65536));
    command->add_flag("--quick", o->quick, "Fewer and smaller runs: within a minute on 2 cores");
    command->add_option("--seed", o->seed, "Seed of tensors, routing, orders and stalls")
        ->type_name("S")
        ->check(whole_number(1, INT64_C(1) << 53))
        ->capture_default_str();
    add_timeout_option(*command, o->timeout);
    command
        ->add_option("--dump", o->extras.dump,
                     "Write the input of the first run that fails, for mok run")
        ->type_name("FILE")
        ->check(a_name());
    command
        ->add_option(
            "--inject-error", o->extras.inject_error,
            "Add 1000 to one element of this tensor of every result, to see the check fail")
        ->type_name("TENSOR")
        ->check(a_name());
    command->callback([o] { run_check(*o); });
}

}  // namespace mok::cli
