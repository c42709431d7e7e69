#include "cli/train/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "cli/common/rank_threads.h"
#include "cli/io/progress.h"

namespace mok::train {
namespace {

constexpr double kLossDecay = 0.95;  // of the mean that the progress line shows

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// What rank 0 does between steps: the loss, the progress line, checkpoints.
class StepLog {
  public:
    StepLog(Model& model, RunState& state, const RunOptions& options)
        : model_(model),
          state_(state),
          options_(options),
          line_("train", model.config.steps, state.steps_done),
          first_(state.steps_done) {}

    void add(double bits) {
        state_.losses.push_back(static_cast<float>(bits));
        ++state_.steps_done;
        mean_ =
            state_.steps_done == first_ + 1 ? bits : kLossDecay * mean_ + (1.0 - kLossDecay) * bits;
        const int64_t tokens = (state_.steps_done - first_) * model_.config.tokens_per_step();
        line_.update(state_.steps_done, fmt::format("loss {:.3f}  {:.1f}k tokens/s", mean_,
                                                    static_cast<double>(tokens) / seconds() / 1e3));
        if (options_.checkpoint_every > 0 && state_.steps_done % options_.checkpoint_every == 0) {
            save();
        }
    }
    void save() const {
        write_checkpoint(options_.checkpoint, model_.config, model_.text.sha256(),
                         model_.parameters, state_);
    }
    double seconds() const { return now_seconds() - start_; }

  private:
    Model& model_;
    RunState& state_;
    const RunOptions& options_;
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

    cli::run_ranks(
        cli::make_groups(options.device, options.num_ranks, {}), [&](const Group& group) {
            RankTrainer rank(model, group, options.max_workers);
            {
                std::optional<StepLog> log;
                if (group.rank() == 0) log.emplace(model, state, options);
                for (int64_t step = first + 1; step <= last; ++step) {
                    const double bits = rank.step(step);
                    require_finite(bits, step);
                    if (log) log->add(bits);
                    // A checkpoint is written before the weights move on.
                    cli::meet(group, "barrier after a step");
                }
                if (log) {
                    result.train_seconds = log->seconds();
                    log->save();
                }
            }
            if (last < config.steps) return;
            rank.evaluate(result.train_starts, Routed::On, result.train);
            rank.evaluate(result.held_out_starts, Routed::On, result.held_out);
            rank.evaluate(result.held_out_starts, Routed::Zeroed, result.held_out_zeroed);
        });
    return result;
}

}  // namespace mok::train
