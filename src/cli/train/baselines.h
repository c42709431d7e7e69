#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cli/train/text.h"

// Two models that a language model must beat, from counts of the training text alone.
namespace mok::train {

inline constexpr int kNumBytes = 256;

// p(b) = (count(b) + 1) / (total + 256).
class Unigram {
  public:
    void count(std::span<const uint8_t> bytes);
    double probability(uint8_t byte) const;

  private:
    std::array<int64_t, kNumBytes> counts_{};
    int64_t total_ = 0;
};

// p(b | a) = lambda * count(a b) / count(a .) + (1 - lambda) * unigram(b) (Jelinek and Mercer
// 1980); where a never came, the unigram alone.
class Bigram {
  public:
    explicit Bigram(double lambda = 0.5) : counts_(kNumBytes * kNumBytes), lambda_(lambda) {}
    // Pairs of neighbours within `bytes`.
    void count(std::span<const uint8_t> bytes);
    double probability(uint8_t previous, uint8_t byte) const;
    // The lambda in [0, 1] that makes the pairs within `parts` most probable; the likelihood's
    // logarithm is concave in lambda, so its derivative is bisected.
    void fit(std::span<const std::span<const uint8_t>> parts);
    double lambda() const { return lambda_; }

  private:
    double conditional(uint8_t previous, uint8_t byte) const;

    Unigram unigram_;
    std::vector<int64_t> counts_;  // [previous, byte]
    std::array<int64_t, kNumBytes> totals_{};
    double lambda_;
};

// Bits per byte of the two on the targets of the sequences that begin at `starts`. Lambda is fitted
// on the last tenth of every train range with counts of the other nine tenths; then the counts are
// taken again from the whole training text.
struct Baselines {
    explicit Baselines(const Text& text);
    double unigram_bits(const Text& text, std::span<const int64_t> starts) const;
    double bigram_bits(const Text& text, std::span<const int64_t> starts) const;

    Unigram unigram;
    Bigram bigram;
};

}  // namespace mok::train
