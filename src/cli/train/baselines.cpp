#include "cli/train/baselines.h"

#include <cmath>

namespace mok::train {

void Unigram::count(std::span<const uint8_t> bytes) {
    for (const uint8_t byte : bytes) ++counts_[byte];
    total_ += static_cast<int64_t>(bytes.size());
}

double Unigram::probability(uint8_t byte) const {
    return static_cast<double>(counts_[byte] + 1) / static_cast<double>(total_ + kNumBytes);
}

void Bigram::count(std::span<const uint8_t> bytes) {
    unigram_.count(bytes);
    for (size_t i = 1; i < bytes.size(); ++i) {
        ++counts_[bytes[i - 1] * kNumBytes + bytes[i]];
        ++totals_[bytes[i - 1]];
    }
}

double Bigram::conditional(uint8_t previous, uint8_t byte) const {
    return static_cast<double>(counts_[previous * kNumBytes + byte]) /
           static_cast<double>(totals_[previous]);
}

double Bigram::probability(uint8_t previous, uint8_t byte) const {
    if (totals_[previous] == 0) return unigram_.probability(byte);
    return lambda_ * conditional(previous, byte) + (1.0 - lambda_) * unigram_.probability(byte);
}

void Bigram::fit(std::span<const std::span<const uint8_t>> parts) {
    std::vector<int64_t> pairs(kNumBytes * kNumBytes);
    for (const std::span<const uint8_t> part : parts) {
        for (size_t i = 1; i < part.size(); ++i) ++pairs[part[i - 1] * kNumBytes + part[i]];
    }
    // d/d lambda of sum of n ln(lambda q + (1 - lambda) u) = sum of n (q - u) / p.
    const auto slope = [&](double lambda) {
        double sum = 0.0;
        for (int pair = 0; pair < kNumBytes * kNumBytes; ++pair) {
            const uint8_t previous = pair / kNumBytes, byte = pair % kNumBytes;
            if (pairs[pair] == 0 || totals_[previous] == 0) continue;
            const double q = conditional(previous, byte), u = unigram_.probability(byte);
            sum += static_cast<double>(pairs[pair]) * (q - u) / (lambda * q + (1.0 - lambda) * u);
        }
        return sum;
    };
    double low = 0.0, high = 1.0;
    for (int i = 0; i < 50; ++i) {
        const double middle = 0.5 * (low + high);
        (slope(middle) > 0.0 ? low : high) = middle;
    }
    lambda_ = low;
}

Baselines::Baselines(const Text& text) {
    Bigram counted;
    std::vector<std::span<const uint8_t>> kept;
    for (const Range& range : text.train_ranges()) {
        const std::span<const uint8_t> whole =
            text.bytes().subspan(range.begin, range.end - range.begin);
        const size_t cut = whole.size() / 10 * 9;
        counted.count(whole.first(cut));
        kept.push_back(whole.subspan(cut));
        unigram.count(whole);
    }
    counted.fit(kept);
    bigram = Bigram(counted.lambda());
    for (const Range& range : text.train_ranges()) {
        bigram.count(text.bytes().subspan(range.begin, range.end - range.begin));
    }
}

double Baselines::unigram_bits(const Text& text, std::span<const int64_t> starts) const {
    double bits = 0.0;
    int64_t count = 0;
    for (const int64_t start : starts) {
        for (const uint8_t byte : text.targets(start)) {
            bits -= std::log2(unigram.probability(byte));
            ++count;
        }
    }
    return bits / static_cast<double>(count);
}

double Baselines::bigram_bits(const Text& text, std::span<const int64_t> starts) const {
    double bits = 0.0;
    int64_t count = 0;
    for (const int64_t start : starts) {
        const std::span<const uint8_t> targets = text.targets(start);
        uint8_t previous = *(targets.data() - 1);  // the context's last byte
        for (const uint8_t byte : targets) {
            bits -= std::log2(bigram.probability(previous, byte));
            previous = byte;
            ++count;
        }
    }
    return bits / static_cast<double>(count);
}

}  // namespace mok::train
