#include "cli/train/config.h"

#include <fmt/format.h>

namespace mok::train {
namespace {

void require_range(const char* option, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        throw InputError(fmt::format("{}: expected {} to {}, found {}", option, low, high, value));
    }
}

void require_positive(const char* option, double value, bool zero_allowed) {
    if (!(zero_allowed ? value >= 0 : value > 0) || value > 1e6) {
        throw InputError(fmt::format("{}: expected a number {} 0, found {}", option,
                                     zero_allowed ? "of at least" : "above", value));
    }
}

}  // namespace

LayerShape Config::layer_shape() const {
    LayerShape shape;
    shape.hidden = hidden;
    shape.intermediate = intermediate;
    shape.num_experts = num_experts;
    shape.top_k = top_k;
    shape.shared_intermediate = shared_intermediate;
    shape.precision = precision;
    return shape;
}

std::map<std::string, std::string> Config::fields() const {
    return {
        {"experts", fmt::to_string(num_experts)},
        {"top_k", fmt::to_string(top_k)},
        {"hidden", fmt::to_string(hidden)},
        {"intermediate", fmt::to_string(intermediate)},
        {"shared_intermediate", fmt::to_string(shared_intermediate)},
        {"precision", precision_name(precision)},
        {"window", fmt::to_string(window)},
        {"ngram_order", fmt::to_string(ngram_order)},
        {"ngram_rows", fmt::to_string(ngram_rows)},
        {"sequences", fmt::to_string(num_sequences)},
        {"sequence_length", fmt::to_string(sequence_length)},
        {"steps", fmt::to_string(steps)},
        {"warmup_steps", fmt::to_string(warmup_steps)},
        {"learning_rate", fmt::to_string(learning_rate)},
        {"weight_decay", fmt::to_string(weight_decay)},
        {"max_grad_norm", fmt::to_string(max_grad_norm)},
        {"balance", fmt::to_string(balance)},
        {"seed", fmt::to_string(seed)},
    };
}

void Config::validate() const {
    require_range("--experts", num_experts, 1, 4096);
    require_range("--top-k", top_k, 1, num_experts);
    require_range("--hidden", hidden, 8, 8192);
    require_range("--intermediate", intermediate, 8, 8192);
    require_range("--shared-intermediate", shared_intermediate, 0, 8192);
    require_range("--window", window, 1, 64);
    require_range("--ngram-order", ngram_order, 1, 8);
    require_range("--ngram-rows", ngram_rows, 1, 1 << 20);
    require_range("--sequences", num_sequences, 8, 4096);
    if (sequence_length % 128 != 0) {
        throw InputError(fmt::format("--sequence-length: expected a multiple of 128, found {}",
                                     sequence_length));
    }
    require_range("--sequence-length", sequence_length, 128, 8192);
    require_range("--steps", steps, 1, 10'000'000);
    require_range("--warmup", warmup_steps, 0, 10'000'000);
    require_positive("--learning-rate", learning_rate, false);
    require_positive("--weight-decay", weight_decay, true);
    require_positive("--clip", max_grad_norm, false);
    require_positive("--balance", balance, true);
}

}  // namespace mok::train
