#include "cli/train_command.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cli/backend.h"
#include "cli/common/memory_limit.h"
#include "cli/io/atomic_file.h"
#include "cli/io/output_name.h"
#include "cli/option_types.h"
#include "cli/precision_option.h"
#include "cli/rank_place.h"
#include "cli/train/baselines.h"
#include "cli/train/checkpoint.h"
#include "cli/train/report.h"
#include "cli/train/training.h"
#include "comm/rank_processes.h"
#include "plan/problem.h"
#include "plan/validate.h"

namespace mok::cli {
namespace {

struct Request {
    train::Config config;
    train::RunOptions run;
    std::filesystem::path text;
    std::filesystem::path out;
    std::filesystem::path resume;
    std::string backend = "auto", precision = "bf16";
    std::optional<int> num_ranks, num_virtual_ranks;
};

void add_run_options(CLI::App& command, Request& request) {
    command.add_option("--text", request.text, "the text, any file")->required()->check(a_name());
    command.add_option("--out", request.out, "folder for checkpoint and loss curve")
        ->required()
        ->check(a_name());
    command
        .add_option("--backend", request.backend,
                    "what computes the layer: auto, cpu or cuda; auto takes cuda where there is a "
                    "GPU for it, else cpu")
        ->capture_default_str();
    add_precision_option(command, request.precision);
    command
        .add_option("--ranks", request.num_ranks,
                    "ranks, each a thread (4); with cuda each a process with a GPU of its own")
        ->check(whole_number(1, plan::kMaxRanks));
    command
        .add_option("--virtual-ranks", request.num_virtual_ranks,
                    fmt::format("{} (4)", kVirtualRanks))
        ->check(whole_number(1, plan::kMaxRanks))
        ->excludes("--ranks");
    command
        .add_option("--workers", request.run.max_workers,
                    "threads of a rank in the layer, with cuda multiprocessors; 0: all there are")
        ->check(whole_number(0, 1024))
        ->capture_default_str();
    command
        .add_option("--resume", request.resume,
                    "go on from this checkpoint, of the same options and text; any number of ranks")
        ->check(a_name());
    command
        .add_option("--checkpoint-every", request.run.checkpoint_every,
                    "steps between checkpoints; 0: at the end alone")
        ->check(whole_number(0, INT64_MAX))
        ->capture_default_str();
    command
        .add_option("--stop-after", request.run.stop_after,
                    "end after this step with a checkpoint; 0: after the last one")
        ->check(whole_number(0, INT64_MAX))
        ->capture_default_str();
    command
        .add_option("--eval-sequences", request.run.eval_sequences,
                    "sequences evaluated of each part of the text, at most")
        ->check(whole_number(1, INT64_MAX))
        ->capture_default_str();
}

// Config::validate has the ranges.
template <class Number>
void add_number(CLI::App& command, const char* name, Number& value, const char* what,
                const char* group) {
    command.add_option(name, value, what)
        ->check(std::is_integral_v<Number> ? whole_number() : finite_number())
        ->capture_default_str()
        ->group(group);
}

void add_model_options(CLI::App& command, train::Config& config) {
    const auto add = [&](const char* name, auto& value, const char* what) {
        add_number(command, name, value, what, "Model");
    };
    add("--experts", config.num_experts, "experts of all ranks");
    add("--top-k", config.top_k, "experts of a token");
    add("--hidden", config.hidden, "width of a token, a multiple of 8");
    add("--intermediate", config.intermediate, "width of an expert, a multiple of 8");
    add("--shared-intermediate", config.shared_intermediate,
        "width of the shared expert, a multiple of 8; 0: none");
    add("--window", config.window, "bytes of context that are embedded by place");
    add("--ngram-order", config.ngram_order, "hashed n-grams of 2..order bytes; 1: none");
    add("--ngram-rows", config.ngram_rows, "rows of each n-gram table");
}

void add_schedule_options(CLI::App& command, train::Config& config) {
    const auto add = [&](const char* name, auto& value, const char* what) {
        add_number(command, name, value, what, "Schedule");
    };
    add("--steps", config.steps, "steps");
    command.add_option("--seed", config.seed, "of weights and batches")
        ->check(whole_number(0, INT64_MAX))
        ->capture_default_str()
        ->group("Schedule");
    add("--sequences", config.num_sequences, "sequences of a step, at least 8");
    add("--sequence-length", config.sequence_length, "bytes of a sequence, a multiple of 128");
    add("--learning-rate", config.learning_rate, "its peak");
    add("--warmup", config.warmup_steps, "steps until the peak");
    add("--weight-decay", config.weight_decay, "of matrices");
    add("--clip", config.max_grad_norm, "largest norm of the gradient");
    add("--balance", config.balance, "factor of the load-balance loss");
}

// `ranks_here`: those that will have a model each in this machine's memory.
void validate(const Request& request, int ranks_here) {
    request.config.validate();
    const std::vector<std::string> problems =
        plan::problems_of(request.config.layer_shape(), Tuning(), request.run.num_ranks,
                          request.config.tokens_per_step());
    if (!problems.empty()) throw train::InputError(problems.front());
    require_memory(ranks_here * train::least_bytes(request.config), "the model");
}

void make_folder(const std::filesystem::path& out) {
    std::error_code error;
    std::filesystem::create_directories(out, error);
    if (error) {
        throw train::InputError(
            fmt::format("{}: the folder cannot be made: {}", out.string(), error.message()));
    }
}

std::filesystem::path curve_of(const Request& request) {
    return request.out / "loss.svg";
}

// What cannot be written is said before the work begins.
void prepare_output(const Request& request) {
    make_folder(request.out);
    for (const auto& file : {request.run.checkpoint, curve_of(request)}) {
        io::refuse_input_as_output(file, {request.text});
        const io::AtomicFile can_be_written(file);
    }
}

train::RunState first_state(const Request& request, const train::Text& text,
                            train::Parameters& parameters) {
    if (request.resume.empty()) return {};
    return train::read_checkpoint(request.resume, request.config, text.sha256(), parameters);
}

int ranks_of(const Request& request, Backend backend) {
    const int by_default = train::RunOptions().num_ranks;
    if (backend == Backend::Cpu) {
        if (request.num_virtual_ranks) refuse_virtual_ranks_on_cpu();
        return request.num_ranks.value_or(by_default);
    }
    const std::optional<int> launched = launched_ranks();
    if (request.num_virtual_ranks) {
        if (launched) refuse_launched("--virtual-ranks", *launched);
        return *request.num_virtual_ranks;
    }
    if (!launched) return request.num_ranks.value_or(by_default);
    if (request.num_ranks) require_launched("--ranks", *request.num_ranks, *launched);
    return *launched;
}

// Of ranks in processes rank 0 alone prints and writes.
void run_training(const Request& request, const BackendChoice& choice) {
    const bool writes = !request.run.processes || request.run.processes->rank() == 0;
    const train::Text text(request.text, request.config);
    if (writes) prepare_output(request);
    train::Model model(request.config, text);
    train::RunState state = first_state(request, text, model.parameters);
    fmt::print("backend: {} ({}), {}\n", backend_name(choice.backend), choice.reason,
               precision_name(request.config.precision));
    fmt::print("{} weights, {} experts, top-{}, {} ranks; text of {} bytes, SHA-256 {}\n",
               model.parameters.count(), request.config.num_experts, request.config.top_k,
               request.run.num_ranks, text.bytes().size(), text.sha256());

    const train::RunResult result = train::train(model, state, request.run);
    if (!writes) return;
    const train::Baselines baselines(text);
    const std::filesystem::path curve = curve_of(request);
    train::write_loss_curve(curve, text, baselines, state, result);
    if (state.steps_done == request.config.steps) {
        fmt::print("trained in {:.1f} s\n\n{}\n", result.train_seconds,
                   train::report_table(text, baselines, result));
    } else {
        fmt::print("stopped after step {} of {}\n", state.steps_done, request.config.steps);
    }
    fmt::print("hash        {}\nloss curve  {}\ncheckpoint  {}\n", model.parameters.hash(),
               curve.string(), request.run.checkpoint.string());
}

// What its ranks would refuse each for itself is refused once.
void start_ranks(const Request& request) {
    comm::demand_gpu_per_rank(request.run.num_ranks, count_cuda_devices());
    const train::Text text(request.text, request.config);
    prepare_output(request);
    train::Parameters parameters(request.config);
    first_state(request, text, parameters);
    run_as_processes(request.run.num_ranks);
}

void run_train(Request request) {
    request.config.precision = precision_of(request.precision);
    const BackendChoice choice = choose_rank_backend(request.backend);
    request.run.device = choice.device;
    request.run.num_ranks = ranks_of(request, choice.backend);
    request.run.checkpoint = request.out / "checkpoint.safetensors";
    const bool is_launched = launched_ranks().has_value();
    const bool starts_ranks = !is_launched && choice.backend == Backend::Cuda &&
                              request.num_ranks && request.run.num_ranks > 1;
    validate(request, starts_ranks ? request.run.num_ranks : 1);
    if (starts_ranks) return start_ranks(request);
    if (!is_launched) return run_training(request, choice);

    const Group group = join_ranks({});
    request.run.processes = group;
    run_rank(group, [&] { run_training(request, choice); });
}

}  // namespace

void add_train_command(CLI::App& app) {
    const auto request = std::make_shared<Request>();
    CLI::App* command = app.add_subcommand(
        "train", "Train a small mixture-of-experts language model on the bytes of a text");
    command->footer(
        "Every tenth of 100 equal blocks of the text is held out. The hash is the SHA-256 of the "
        "FP32\n"
        "weights in the order of their names; --ranks, --virtual-ranks and --workers do not change "
        "it.\n"
        "Of ranks in processes, started by --ranks with cuda or by a launcher, rank 0 prints and "
        "writes.\n"
        "Exit status: 0 done, 1 failed, 2 bad input, 3 a rank that did not come.");
    command->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_run_options(*command, *request);
    add_model_options(*command, request->config);
    add_schedule_options(*command, request->config);
    command->callback([request] { run_train(*request); });
}

}  // namespace mok::cli
