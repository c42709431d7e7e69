#include "plan/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "plan/problem.h"

namespace mok::plan {
namespace {

// The plan's indices and counts are int32.
constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();
// Widths are rounded up to tiles, and a ring and a minibatch are added, in int32.
constexpr int64_t kMaxWidth = int64_t{1} << 30;
constexpr int64_t kMaxRingRows = int64_t{1} << 30;
constexpr int64_t kWidthAlign = 8;  // 16 bytes of BF16: what one aligned load moves

class Rules {
  public:
    void require(bool holds, const std::string& what, const std::string& expected,
                 const std::string& found) {
        if (!holds) sentences_.push_back(what + " must be " + expected + ", found " + found);
    }
    void require(bool holds, const std::string& what, const std::string& expected, int64_t found) {
        require(holds, what, expected, std::to_string(found));
    }
    bool all_hold() const { return sentences_.empty(); }
    std::vector<std::string> take() { return std::move(sentences_); }

  private:
    std::vector<std::string> sentences_;
};

std::string at_most(int64_t bound) {
    return "at most " + std::to_string(bound);
}

void check_shape(const LayerShape& s, Rules& rules) {
    const auto width = [&rules](const char* what, int64_t value, int64_t least) {
        const std::string expected =
            std::string(least > 0 ? "a positive multiple of " : "0 or a positive multiple of ") +
            std::to_string(kWidthAlign) + " and " + at_most(kMaxWidth);
        rules.require(value >= least && value <= kMaxWidth && value % kWidthAlign == 0, what,
                      expected, value);
    };
    width("hidden (H)", s.hidden, 1);
    width("intermediate (I)", s.intermediate, 1);
    width("shared_intermediate (S)", s.shared_intermediate, 0);
    rules.require(s.num_experts >= 1 && s.num_experts <= kMaxIndex, "num_experts (E)",
                  "at least 1 and " + at_most(kMaxIndex), s.num_experts);
    rules.require(s.top_k >= 1 && s.top_k <= kMaxTopK, "top_k (K)",
                  "from 1 to " + std::to_string(kMaxTopK), s.top_k);
    rules.require(s.activation.limit > 0, "activation.limit", "above 0 (infinity: no limit)",
                  std::to_string(s.activation.limit));
    rules.require(std::isfinite(s.activation.alpha), "activation.alpha", "finite",
                  std::to_string(s.activation.alpha));
    rules.require(std::isfinite(s.activation.beta), "activation.beta", "finite",
                  std::to_string(s.activation.beta));
}

void check_tuning(const Tuning& t, Rules& rules) {
    const std::string tile = std::to_string(kTileRows);
    rules.require(t.minibatch_rows >= 0 && t.minibatch_rows % kTileRows == 0, "minibatch_rows (b)",
                  "0 (the default rule) or a positive multiple of " + tile, t.minibatch_rows);
    rules.require(t.macrobatch_rows >= kTileRows && t.macrobatch_rows <= kMaxRingRows &&
                      t.macrobatch_rows % kTileRows == 0,
                  "macrobatch_rows (B)",
                  "a positive multiple of " + tile + " and " + at_most(kMaxRingRows),
                  t.macrobatch_rows);
    rules.require(t.minibatch_rows <= t.macrobatch_rows, "minibatch_rows (b)",
                  "at most macrobatch_rows (" + std::to_string(t.macrobatch_rows) + ")",
                  t.minibatch_rows);
    rules.require(
        t.context_rows == -1 ||
            (t.context_rows >= 0 && t.context_rows <= kMaxIndex && t.context_rows % kTileRows == 0),
        "context_rows (C)",
        "-1 (every row), 0 or a positive multiple of " + tile + ", and " + at_most(kMaxIndex),
        t.context_rows);
    rules.require(t.max_workers >= 0, "max_workers", "0 (all there are) or positive",
                  t.max_workers);
}

// Sums and products that the plan computes in int32. The checks above hold, so that none of these
// overflows int64.
void check_indices(const LayerShape& s, const Tuning& t, int64_t ranks, int64_t max_tokens,
                   Rules& rules) {
    const int64_t experts = ceil_div64(s.num_experts, ranks);  // of rank 0, which has the most
    const int64_t slots = ranks * max_tokens * s.top_k + experts * (kTileRows - 1);
    rules.require(slots + t.macrobatch_rows <= kMaxIndex,
                  "max_tokens: ranks * max_tokens * top_k routes, padding and one ring",
                  at_most(kMaxIndex) + " rows", slots + t.macrobatch_rows);

    const int64_t widest =
        std::max({ceil_div64(s.hidden, kOutCols), ceil_div64(s.intermediate, kGateUpCols),
                  ceil_div64(s.shared_intermediate, kGateUpCols)});
    const int64_t most_tiles = std::max(slots, max_tokens) / kTileRows + 1;
    rules.require(most_tiles * widest <= kMaxIndex,
                  "hidden (H), intermediate (I): output tiles of one phase", at_most(kMaxIndex),
                  most_tiles * widest);
    const auto wgrads = [&](const char* what, int64_t width, int64_t count) {
        const int64_t tiles = 2 * ceil_div64(width, kWgradRows) * ceil_div64(s.hidden, kWgradCols) +
                              ceil_div64(s.hidden, kWgradRows) * ceil_div64(width, kWgradCols);
        // The first bound keeps the product inside int64.
        const bool holds = tiles <= kMaxIndex && tiles * count <= kMaxIndex;
        rules.require(holds, what, at_most(kMaxIndex),
                      std::to_string(tiles) + " * " + std::to_string(count));
    };
    wgrads("intermediate (I): weight-gradient tiles of a rank's experts", s.intermediate, experts);
    wgrads("shared_intermediate (S): weight-gradient tiles", s.shared_intermediate, 1);
}

}  // namespace

std::vector<std::string> problems_of(const LayerShape& shape, const Tuning& tuning, int num_ranks,
                                     int64_t max_tokens) {
    Rules rules;
    check_shape(shape, rules);
    check_tuning(tuning, rules);
    rules.require(num_ranks >= 1 && num_ranks <= kMaxRanks, "the number of ranks (R)",
                  "from 1 to " + std::to_string(kMaxRanks), num_ranks);
    rules.require(max_tokens >= 0 && max_tokens <= kMaxIndex, "max_tokens",
                  "at least 0 and " + at_most(kMaxIndex), max_tokens);
    if (rules.all_hold()) check_indices(shape, tuning, num_ranks, max_tokens, rules);
    return rules.take();
}

}  // namespace mok::plan
