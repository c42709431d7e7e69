#include "cli/run_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>

#include "cli/backend.h"
#include "cli/common/global_layer.h"
#include "cli/common/layer_file.h"
#include "cli/common/memory_limit.h"
#include "cli/group_options.h"
#include "cli/io/atomic_file.h"
#include "cli/io/output_name.h"
#include "cli/option_types.h"
#include "cli/precision_option.h"
#include "cli/rank_place.h"
#include "cli/version.h"
#include "plan/problem.h"
#include "plan/validate.h"

namespace mok::cli {
namespace {

struct RunOptions {
    std::string input, output;
    std::optional<int> num_ranks, num_virtual_ranks;
    std::string backend = "auto", precision = "bf16";
    Activation activation;
    Tuning tuning;
    int64_t seed = 0;
    std::optional<std::string> timeout;
};

// On CUDA ranks are processes with a GPU each, or virtual ranks that share one.
int ranks_of(const RunOptions& o, const LayerInput& input, Backend backend) {
    const auto given = static_cast<int>(std::min<int64_t>(std::ssize(input.tokens_per_rank), 1000));
    if (backend == Backend::Cpu) {
        if (o.num_virtual_ranks) refuse_virtual_ranks_on_cpu();
        return o.num_ranks.value_or(std::max(given, 1));
    }
    const std::optional<int> launched = launched_ranks();
    if (o.num_virtual_ranks) {
        if (launched) refuse_launched("--virtual-ranks", *launched);
        return *o.num_virtual_ranks;
    }
    if (!launched) return o.num_ranks.value_or(std::max(given, 1));
    if (o.num_ranks) require_launched("--ranks", *o.num_ranks, *launched);
    return *launched;
}

GlobalOptions layer_options(const RunOptions& o, const LayerInput& input,
                            const BackendChoice& choice) {
    GlobalOptions g;
    g.device = choice.device;
    g.num_ranks = ranks_of(o, input, choice.backend);
    g.tokens_per_rank = input.tokens_per_rank;
    g.tuning = o.tuning;
    g.group = group_options(o.timeout);
    if (o.seed > 0 && choice.backend == Backend::Cuda) {
        throw std::invalid_argument(
            "--seed: expected 0 with --backend cuda, which runs the tasks "
            "in the program's order, found another seed");
    }
    for (int r = 0; o.seed > 0 && r < g.num_ranks; ++r) {
        Diagnostics d;
        d.order_seed = static_cast<uint64_t>(o.seed) * 1000 + r;
        g.diagnostics.push_back(d);
    }
    return g;
}

// Bytes that any way to run the call touches: results, published rows and one row a route.
double least_bytes(const LayerShape& s, const GlobalInputs& in) {
    const double n = static_cast<double>(in.x.shape[0]), h = static_cast<double>(s.hidden);
    const double expert = 3.0 * static_cast<double>(s.num_experts * s.intermediate) * h;
    const double shared = 3.0 * static_cast<double>(s.shared_intermediate) * h;
    const double forward = n * h * (2 + 2 + 2 * static_cast<double>(s.top_k));
    return in.grad_output.present() ? forward + n * h * 4 + 4 * (expert + shared) : forward;
}

void require_possible(const LayerInput& input, const GlobalOptions& g) {
    // The group's own rule first: the others are stated for its number of ranks.
    Group::in_process(g.num_ranks, g.group);
    const std::vector<int64_t> tokens = split_tokens(input.tensors.x.shape[0], g);
    const std::vector<std::string> broken = plan::problems_of(
        input.shape, g.tuning, g.num_ranks, *std::max_element(tokens.begin(), tokens.end()));
    if (!broken.empty()) throw ShapeError(fmt::format("{}", fmt::join(broken, "; ")));
    require_memory(least_bytes(input.shape, input.tensors), "the layer");
}

// Of the result, nothing of how it was computed: equal results make equal files.
io::Metadata metadata_of(const RunOptions& o, Backend backend, const GlobalResult& result) {
    return {{"program", fmt::format("mok {}", kVersion)},
            {"backend", backend_name(backend)},
            {"precision", o.precision},
            {"tokens_per_expert", fmt::format("{}", fmt::join(result.tokens_per_expert, ","))}};
}

void print_layer(const LayerInput& input, const GlobalOptions& g, int64_t seed) {
    const LayerShape& s = input.shape;
    fmt::print(
        "layer: {} tokens, hidden {}, intermediate {}, {} experts, top-{}, shared expert {}\n",
        input.tensors.x.shape[0], s.hidden, s.intermediate, s.num_experts, s.top_k,
        s.shared_intermediate > 0 ? std::to_string(s.shared_intermediate) : "none");
    fmt::print("ranks: {}, tokens of each: {}\n", g.num_ranks,
               fmt::join(split_tokens(input.tensors.x.shape[0], g), ", "));
    if (seed > 0) fmt::print("order: random from seed {}, on one worker a rank\n", seed);
}

// Of ranks in processes rank 0 alone prints and writes.
void run_layer(const RunOptions& o, const BackendChoice& choice, const LayerInput& input,
               const GlobalOptions& options) {
    const bool writes = !options.processes || options.processes->rank() == 0;
    if (writes) const io::AtomicFile can_be_written(o.output);
    fmt::print("backend: {} ({})\n", backend_name(choice.backend), choice.reason);
    print_layer(input, options, o.seed);

    // 3. The layer.
    const auto start = std::chrono::steady_clock::now();
    const GlobalResult result = run_global(input.shape, input.tensors, options);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    fmt::print("{}: {:.3f} s\n",
               input.tensors.grad_output.present() ? "forward and backward" : "forward",
               taken.count());
    fmt::print("tokens per expert: {}\n", fmt::join(result.tokens_per_expert, ", "));

    // 4. The file.
    if (!writes) return;
    const int num_tensors =
        write_layer_result(o.output, input.tensors, result, metadata_of(o, choice.backend, result));
    fmt::print("written: {} ({} tensors)\n", o.output, num_tensors);
}

void run(const RunOptions& o) {
    // 1. Everything that can be refused is refused before the work begins.
    const Precision precision = precision_of(o.precision);
    io::refuse_input_as_output(o.output, {o.input});
    const BackendChoice choice = choose_rank_backend(o.backend);
    LayerInput input = read_layer_input(o.input);
    input.shape.activation = o.activation;
    input.shape.precision = precision;
    GlobalOptions options = layer_options(o, input, choice);
    require_possible(input, options);

    // 2. Where the ranks run.
    if (launched_ranks()) {
        const Group group = join_ranks(options.group);
        options.processes = group;
        options.device = group.device();
        return run_rank(group, [&] { run_layer(o, choice, input, options); });
    }
    const bool are_processes =
        choice.backend == Backend::Cuda && !o.num_virtual_ranks && options.num_ranks > 1;
    if (!are_processes) return run_layer(o, choice, input, options);
    { const io::AtomicFile can_be_written(o.output); }
    run_as_processes(options.num_ranks);
}

}  // namespace

void add_run_command(CLI::App& app) {
    const auto o = std::make_shared<RunOptions>();
    CLI::App* command = app.add_subcommand("run", "Run one layer on the tensors of a file.");
    command->footer(
        "Input tensors (BF16 or F32 unless said otherwise): hidden_states [N,H]; topk_ids [N,K] "
        "I64 "
        "or I32,\n-1: no expert; topk_weights [N,K] F32; gate_proj, up_proj [E,I,H]; down_proj "
        "[E,H,I]. Optional:\ngate_bias, up_bias [E,I]; down_bias [E,H]; shared_gate_proj, "
        "shared_up_proj [S,H] and\nshared_down_proj [H,S], and with them shared_weights [N] F32; "
        "grad_output [N,H]: the backward too;\ntokens_per_rank [R] I64. Other names are refused.\n"
        "Output tensors: output [N,H] BF16; with grad_output grad_hidden_states [N,H] BF16, and in "
        "F32\ngrad_topk_weights [N,K] and grad_ + every weight, bias and shared tensor.\n"
        "The output does not depend on --ranks, --minibatch, --macrobatch, --context-rows, "
        "--workers or\n--seed (gradients of the shared expert's weights: where rank boundaries are "
        "multiples of 128 tokens).");
    command->add_option("input", o->input, "Input file (safetensors)")
        ->required()
        ->type_name("IN.safetensors")
        ->check(a_name());
    command->add_option("-o,--output", o->output, "Output file; appears only when complete")
        ->required()
        ->type_name("OUT.safetensors")
        ->check(a_name());
    command
        ->add_option(
            "--ranks", o->num_ranks,
            "Ranks, threads of this process; CUDA: processes with a GPU each (default: the length "
            "of tokens_per_rank, or 1)")
        ->type_name("R")
        ->check(whole_number(1, plan::kMaxRanks));
    command->add_option("--virtual-ranks", o->num_virtual_ranks, kVirtualRanks)
        ->type_name("V")
        ->check(whole_number(1, plan::kMaxRanks))
        ->excludes("--ranks");
    command
        ->add_option("--backend", o->backend,
                     "auto, cpu or cuda; auto takes cuda where there is a GPU for it, else cpu")
        ->type_name("NAME")
        ->capture_default_str();
    add_precision_option(*command, o->precision);
    command
        ->add_option("--limit", o->activation.limit, "Activation: bound of gate and up (inf: none)")
        ->type_name("X")
        ->check(number_above(0.0))
        ->capture_default_str();
    command->add_option("--alpha", o->activation.alpha, "Activation: factor inside the sigmoid")
        ->type_name("X")
        ->check(finite_number())
        ->capture_default_str();
    command->add_option("--beta", o->activation.beta, "Activation: added to up")
        ->type_name("X")
        ->check(finite_number())
        ->capture_default_str();
    command
        ->add_option("--minibatch", o->tuning.minibatch_rows,
                     "Rows of a minibatch, a multiple of 128 (0: four full waves per phase of a "
                     "forward, two of a backward)")
        ->type_name("b")
        ->check(whole_number(0, INT32_MAX))
        ->capture_default_str();
    command
        ->add_option("--macrobatch", o->tuning.macrobatch_rows,
                     "Rows of the ring, a multiple of 128, at least b")
        ->type_name("B")
        ->check(whole_number(1, INT32_MAX))
        ->capture_default_str();
    command
        ->add_option(
            "--context-rows", o->tuning.context_rows,
            "Rows whose gate and up are kept for the backward, a multiple of 128 (-1: all)")
        ->type_name("C")
        ->check(whole_number(-1, INT32_MAX))
        ->capture_default_str();
    command
        ->add_option("--workers", o->tuning.max_workers,
                     "Threads of a rank; CUDA: multiprocessors (0: all there are)")
        ->type_name("W")
        ->check(whole_number(0, 1024))
        ->capture_default_str();
    command
        ->add_option("--seed", o->seed,
                     "Run the tasks in a random order from this seed, on one worker a rank (0: the "
                     "program's order)")
        ->type_name("S")
        ->check(whole_number(0, INT64_C(1) << 53))
        ->capture_default_str();
    add_timeout_option(*command, o->timeout);
    command->callback([o] { run(*o); });
}

}  // namespace mok::cli
