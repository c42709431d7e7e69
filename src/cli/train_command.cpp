#include "cli/train_command.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/io/file_error.h"
#include "cli/train/baselines.h"
#include "cli/train/checkpoint.h"
#include "cli/train/report.h"
#include "cli/train/training.h"
#include "openmok/error.h"
#include "plan/validate.h"

namespace mok::cli {
namespace {

constexpr int kStatusRefused = 2;
constexpr int kStatusFault = 3;

struct Request {
    train::Config config;
    train::RunOptions run;
    std::filesystem::path text;
    std::filesystem::path out;
    std::filesystem::path resume;
};

void add_run_options(CLI::App& command, Request& request) {
    command.add_option("--text", request.text, "the text, any file")->required();
    command.add_option("--out", request.out, "folder for checkpoint and loss curve")->required();
    command.add_option("--ranks", request.run.num_ranks, "ranks, each a thread")
        ->capture_default_str();
    command
        .add_option("--workers", request.run.max_workers,
                    "threads of a rank in the layer; 0: all there are")
        ->capture_default_str();
    command.add_option("--resume", request.resume,
                       "go on from this checkpoint, of the same options and text; any --ranks");
    command
        .add_option("--checkpoint-every", request.run.checkpoint_every,
                    "steps between checkpoints; 0: at the end alone")
        ->capture_default_str();
    command
        .add_option("--stop-after", request.run.stop_after,
                    "end after this step with a checkpoint; 0: after the last one")
        ->capture_default_str();
    command
        .add_option("--eval-sequences", request.run.eval_sequences,
                    "sequences evaluated of each part of the text, at most")
        ->capture_default_str();
}

void add_model_options(CLI::App& command, train::Config& config) {
    const auto add = [&](const char* name, auto& value, const char* what) {
        command.add_option(name, value, what)->capture_default_str()->group("Model");
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
        command.add_option(name, value, what)->capture_default_str()->group("Schedule");
    };
    add("--steps", config.steps, "steps");
    add("--seed", config.seed, "of weights and batches");
    add("--sequences", config.num_sequences, "sequences of a step, at least 8");
    add("--sequence-length", config.sequence_length, "bytes of a sequence, a multiple of 128");
    add("--learning-rate", config.learning_rate, "its peak");
    add("--warmup", config.warmup_steps, "steps until the peak");
    add("--weight-decay", config.weight_decay, "of matrices");
    add("--clip", config.max_grad_norm, "largest norm of the gradient");
    add("--balance", config.balance, "factor of the load-balance loss");
}

void require_at_least(const char* option, int64_t low, int64_t found) {
    if (found < low) {
        throw train::InputError(
            fmt::format("{}: expected at least {}, found {}", option, low, found));
    }
}

void validate(const Request& request) {
    request.config.validate();
    require_at_least("--workers", 0, request.run.max_workers);
    require_at_least("--checkpoint-every", 0, request.run.checkpoint_every);
    require_at_least("--stop-after", 0, request.run.stop_after);
    require_at_least("--eval-sequences", 1, request.run.eval_sequences);
    const std::vector<std::string> problems =
        plan::problems_of(request.config.layer_shape(), Tuning(), request.run.num_ranks,
                          request.config.tokens_per_step());
    if (!problems.empty()) throw train::InputError(problems.front());
}

void make_folder(const std::filesystem::path& out) {
    std::error_code error;
    std::filesystem::create_directories(out, error);
    if (error) {
        throw train::InputError(
            fmt::format("{}: the folder cannot be made: {}", out.string(), error.message()));
    }
}

void run_train(Request& request) {
    validate(request);
    const train::Text text(request.text, request.config);
    make_folder(request.out);
    request.run.checkpoint = request.out / "checkpoint.safetensors";
    const std::filesystem::path curve = request.out / "loss.svg";

    train::Model model(request.config, text);
    train::RunState state;
    if (!request.resume.empty()) {
        state =
            train::read_checkpoint(request.resume, request.config, text.sha256(), model.parameters);
    }
    fmt::print("{} weights, {} experts, top-{}, {} ranks; text of {} bytes, SHA-256 {}\n",
               model.parameters.count(), request.config.num_experts, request.config.top_k,
               request.run.num_ranks, text.bytes().size(), text.sha256());

    const train::RunResult result = train::train(model, state, request.run);
    const train::Baselines baselines(text);
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

int complain(int status, const char* sentence) {
    fmt::print(stderr, "mok train: {}\n", sentence);
    return status;
}

}  // namespace

void add_train_command(CLI::App& app, int& status) {
    const auto request = std::make_shared<Request>();
    CLI::App* command = app.add_subcommand(
        "train", "Train a small mixture-of-experts language model on the bytes of a text");
    command->footer(
        "Every tenth of 100 equal blocks of the text is held out. The hash is the SHA-256 of the "
        "FP32\n"
        "weights in the order of their names; neither --ranks nor --workers changes it.\n"
        "Exit status: 0 done, 2 a request that cannot be done, 3 a rank that failed or did not "
        "come.");
    command->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_run_options(*command, *request);
    add_model_options(*command, request->config);
    add_schedule_options(*command, request->config);
    command->callback([request, &status] {
        try {
            run_train(*request);
            status = 0;
        } catch (const TimeoutError& error) {
            status = complain(kStatusFault, error.what());
        } catch (const std::exception& error) {
            status = complain(kStatusRefused, error.what());
        }
    });
}

}  // namespace mok::cli
