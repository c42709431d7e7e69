#include "cli/check/run_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <stdexcept>

#include "cli/common/element_writer.h"
#include "cli/common/layer_file.h"
#include "cli/common/layer_file_names.h"

namespace mok::cli {
namespace {

constexpr float kInjected = 1000.0f;

void add_to_middle(std::vector<Bf16>& tensor) {
    Bf16& middle = tensor.at(tensor.size() / 2);
    middle = to_bf16(to_f32(middle) + kInjected);
}
void add_to_middle(std::vector<float>& tensor) {
    tensor.at(tensor.size() / 2) += kInjected;
}

// The tensors of a call's result.
std::vector<std::string> result_names(const GlobalInputs& inputs) {
    if (!inputs.grad_output.present()) return {"output"};
    std::vector<std::string> names{"output", "grad_hidden_states"};
    for (const TensorRule& rule : tensor_rules()) {
        if (rule.grad == nullptr || !rule.in(inputs).present()) continue;
        names.push_back(std::string("grad_") + rule.name);
    }
    return names;
}

void require_name(const std::string& tensor, const std::vector<std::string>& names) {
    if (tensor.empty() || std::ranges::find(names, tensor) != names.end()) return;
    throw std::invalid_argument(fmt::format("--inject-error: expected one of {}, found {}",
                                            fmt::join(names, ", "), io::in_quotes(tensor)));
}

void inject(GlobalResult& result, const std::string& tensor) {
    if (tensor == "output") return add_to_middle(result.output);
    if (tensor == "grad_hidden_states") return add_to_middle(result.d_x);
    for (const TensorRule& rule : tensor_rules()) {
        if (rule.grad == nullptr || tensor != std::string("grad_") + rule.name) continue;
        add_to_middle(result.*rule.grad);
    }
}

// The two values of a bitwise comparison: tensors of two bytes are BF16, of four F32.
std::string decimals(const Mismatch& m) {
    if (m.bound != Bound::kBits) return "";
    const auto value = [&m](uint64_t bits) {
        return m.element_bytes == 2 ? to_f32(Bf16{static_cast<uint16_t>(bits)})
                                    : std::bit_cast<float>(static_cast<uint32_t>(bits));
    };
    return fmt::format(" (found {:.9g}, expected {:.9g})", value(m.found_bits), value(m.want_bits));
}

std::vector<std::string> sentences_of(const Trial& trial, const std::vector<Mismatch>& mismatches) {
    const ElementWriter writer(trial.batch->shape, trial.batch->inputs(), trial.options);
    std::vector<std::string> sentences;
    for (const Mismatch& m : mismatches) {
        sentences.push_back(fmt::format("{}: {}{}; written by {}", trial.what, m.sentence(),
                                        decimals(m),
                                        writer.origin(m.tensor, m.coordinate).sentence));
    }
    return sentences;
}

}  // namespace

std::vector<CheckOutcome> run_checks(const std::vector<Check>& checks, const CheckExtras& extras) {
    require_name(extras.inject_error, result_names(checks.at(0).trials.at(0).batch->inputs()));
    int64_t total = 0, done = 0;
    for (const Check& check : checks) total += std::ssize(check.trials);
    io::Progress progress("check", total, 0, extras.progress);
    bool dumped = extras.dump.empty();
    std::vector<CheckOutcome> outcomes;
    for (const Check& check : checks) {
        const auto start = std::chrono::steady_clock::now();
        CheckOutcome outcome{check.name, check.against, 0, 0, 0.0, {}};
        for (const Trial& trial : check.trials) {
            progress.update(done++, fmt::format("{}: {}", check.name, trial.what));
            const GlobalInputs inputs = trial.batch->inputs();
            GlobalResult found = run_global(trial.batch->shape, inputs, trial.options);
            if (!extras.inject_error.empty()) inject(found, extras.inject_error);
            const std::vector<Mismatch> mismatches = trial.compare(found);
            ++outcome.num_trials;
            if (mismatches.empty()) continue;
            if (outcome.num_failed++ == 0) outcome.sentences = sentences_of(trial, mismatches);
            if (!dumped) {
                write_layer_input(extras.dump, inputs,
                                  split_tokens(trial.batch->num_tokens, trial.options));
                dumped = true;
            }
        }
        outcome.seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        outcomes.push_back(std::move(outcome));
    }
    progress.update(total, "");
    return outcomes;
}

}  // namespace mok::cli
