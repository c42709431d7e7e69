#include "cli/train/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>

#include "cli/common/rank_threads.h"
#include "cli/io/progress.h"

namespace mok::train {
namespace {

constexpr double kLossDecay = 0.95;  // of the mean that the progress line shows

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// The progress line, of rank 0.
class StepLine {
  public:
    StepLine(const Config& config, int64_t steps_done)
        : config_(config), line_("train", config.steps, steps_done), first_(steps_done) {}

    void add(int64_t step, double bits) {
        mean_ = step == first_ + 1 ? bits : kLossDecay * mean_ + (1.0 - kLossDecay) * bits;
        const int64_t tokens = (step - first_) * config_.tokens_per_step();
        line_.update(step, fmt::format("loss {:.3f}  {:.1f}k tokens/s", mean_,
                                       static_cast<double>(tokens) / seconds() / 1e3));
    }

  private:
    double seconds() const { return now_seconds() - start_; }

    const Config& config_;
    io::Progress line_;
    int64_t first_;
    double start_ = now_seconds();
    double mean_ = 0.0;
};

void require_finite(double bits, int64_t step) {
    if (!std::isfinite(bits)) {
        throw InputError(fmt::format(
            "the loss of step {} is not a finite number; a lower --learning-rate may help", step));
    }
}

Copies copies_of(const RunOptions& options) {
    return options.processes ? Copies::OnePerRank : Copies::OneForAll;
}

// Ranks with a model of their own must have the same one, and make the same calls.
void require_equal_ranks(const Exchange& exchange, const Model& model, const RunState& state,
                         const RunOptions& options) {
    std::vector<std::string> facts;
    for (const auto& [name, value] : model.config.fields()) facts.push_back(name + ' ' + value);
    facts.push_back(fmt::format("checkpoint_every {}", options.checkpoint_every));
    facts.push_back(fmt::format("stop_after {}", options.stop_after));
    facts.push_back(fmt::format("eval_sequences {}", options.eval_sequences));
    facts.push_back("text_sha256 " + model.text.sha256());
    facts.push_back(fmt::format("step {}", state.steps_done));
    facts.push_back("hash " + model.parameters.hash());
    const std::string difference = exchange.difference(facts);
    if (!difference.empty()) throw InputError(difference);
}

// One rank of a run.
class Rank {
  public:
    // `state`: moved on by every rank that has a model of its own, else by rank 0.
    Rank(Model& model, RunState& state, const RunOptions& options, const Group& group)
        : model_(model),
          state_(state),
          options_(options),
          exchange_(group, copies_of(options)),
          is_first_(group.rank() == 0),
          owns_state_(exchange_.duty().index == 0) {
        if (options.processes) require_equal_ranks(exchange_, model, state, options);
        trainer_.emplace(model, group, copies_of(options), options.max_workers);
    }

    // Returns the seconds that it took.
    double train(int64_t first, int64_t last) {
        std::optional<StepLine> line;
        if (is_first_) line.emplace(model_.config, first);
        const double start = now_seconds();
        for (int64_t step = first + 1; step <= last; ++step) {
            const double bits = trainer_->step(step);
            require_finite(bits, step);
            if (owns_state_) {
                state_.losses.push_back(static_cast<float>(bits));
                state_.steps_done = step;
            }
            if (line) line->add(step, bits);
            const int64_t every = options_.checkpoint_every;
            if (every > 0 && step % every == 0) save();
            // A checkpoint is written before the weights move on.
            exchange_.meet("barrier after a step");
        }
        const double taken = now_seconds() - start;
        save();
        return taken;
    }

    void evaluate(RunResult& result) {
        trainer_->evaluate(result.train_starts, Routed::On, result.train);
        trainer_->evaluate(result.held_out_starts, Routed::On, result.held_out);
        trainer_->evaluate(result.held_out_starts, Routed::Zeroed, result.held_out_zeroed);
    }

  private:
    void save() {
        if (options_.processes) {
            const std::string difference =
                exchange_.difference({"hash " + model_.parameters.hash()});
            if (!difference.empty()) {
                throw Error(fmt::format("after step {}, {}", state_.steps_done, difference));
            }
        }
        if (!is_first_) return;
        write_checkpoint(options_.checkpoint, model_.config, model_.text.sha256(),
                         model_.parameters, state_);
    }

    Model& model_;
    RunState& state_;
    const RunOptions& options_;
    Exchange exchange_;
    bool is_first_, owns_state_;
    std::optional<RankTrainer> trainer_;
};

}  // namespace

double least_bytes(const Config& config) {
    const std::array<WeightInfo, kNumWeights> infos = placed_weights(config);
    const double weights = static_cast<double>(infos.back().offset + infos.back().size);
    const double dense = static_cast<double>(infos[static_cast<int>(Weight::Embedding)].offset);
    const double tokens = static_cast<double>(config.tokens_per_step());
    const double gradients = dense * static_cast<double>(config.num_sequences);
    const double rows = tokens * static_cast<double>(6 * config.hidden + config.num_experts);
    return weights * (4 * sizeof(float) + sizeof(Bf16)) + (gradients + rows) * sizeof(float);
}

RunResult train(Model& model, RunState& state, const RunOptions& options) {
    const Config& config = model.config;
    RunResult result;
    result.train_starts = model.text.cover(model.text.train_ranges(), options.eval_sequences);
    result.held_out_starts = model.text.cover(model.text.held_out_ranges(), options.eval_sequences);
    const int64_t first = state.steps_done;
    const int64_t last =
        options.stop_after > 0 ? std::min(options.stop_after, config.steps) : config.steps;

    const auto run = [&](const Group& group) {
        Rank rank(model, state, options, group);
        const double seconds = rank.train(first, last);
        if (options.processes || group.rank() == 0) result.train_seconds = seconds;
        if (last == config.steps) rank.evaluate(result);
    };
    if (options.processes) {
        run(*options.processes);
    } else {
        cli::run_ranks(cli::make_groups(options.device, options.num_ranks, {}), run);
    }
    return result;
}

}  // namespace mok::train
