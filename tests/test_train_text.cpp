// Sanitizers: asan
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "cli/io/file_error.h"
#include "cli/train/baselines.h"
#include "cli/train/text.h"

namespace mok::train {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) {
    return {text.begin(), text.end()};
}

Text counted_text(int64_t size) {
    std::vector<uint8_t> bytes(size);
    for (int64_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
    return Text(bytes, Config(), "counted");
}

TEST(Text, PartsCoverTheTextOnceAndOneTenthIsHeldOut) {
    const Text text = counted_text(50'001);
    std::vector<int> covered(50'001);
    int64_t held_out = 0;
    for (const Range& range : text.train_ranges()) {
        for (int64_t i = range.begin; i < range.end; ++i) ++covered[i];
    }
    for (const Range& range : text.held_out_ranges()) {
        for (int64_t i = range.begin; i < range.end; ++i) ++covered[i];
        held_out += range.end - range.begin;
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), 50'001);
    EXPECT_NEAR(held_out, 5'000, 10);
}

TEST(Text, BatchesStayInTrainRangesAndDependOnSeedAndStep) {
    const Text text = counted_text(50'000);
    std::set<int64_t> starts;
    for (int64_t step = 1; step <= 100; ++step) {
        for (int64_t index = 0; index < 8; ++index) {
            const int64_t start = text.draw_start(5, step, index);
            const auto inside = [&](const Range& range) {
                return start >= range.begin && start + text.window() <= range.end;
            };
            EXPECT_TRUE(
                std::any_of(text.train_ranges().begin(), text.train_ranges().end(), inside));
            EXPECT_EQ(start, text.draw_start(5, step, index));
            starts.insert(start);
        }
    }
    // 800 draws of about 43600 starts: some 7 pairs are expected to be equal.
    EXPECT_GT(starts.size(), 770u);
    EXPECT_NE(text.draw_start(5, 1, 0), text.draw_start(6, 1, 0));
}

TEST(Text, DrawsAreUniform) {
    const Text text = counted_text(50'000);
    std::vector<int> per_range(10);
    for (int64_t step = 0; step < 10'000; ++step) ++per_range[text.draw_start(1, step, 3) / 5000];
    for (const int count : per_range) EXPECT_NEAR(count, 1000, 150);  // 5 standard deviations
}

TEST(Text, CoverDoesNotPredictAByteTwice) {
    const Text text = counted_text(50'000);
    const std::vector<int64_t> all = text.cover(text.held_out_ranges(), 1'000'000);
    EXPECT_EQ(all.size(), 10u * ((500 - 8) / 128));
    for (size_t i = 1; i < all.size(); ++i) EXPECT_GE(all[i] - all[i - 1], 128);
    const std::vector<int64_t> some = text.cover(text.held_out_ranges(), 7);
    EXPECT_EQ(some.size(), 7u);
    EXPECT_GT(some.back(), 40'000);
    EXPECT_EQ(std::set<int64_t>(some.begin(), some.end()).size(), 7u);
}

TEST(Text, Sha256OfTheWholeFile) {
    // FIPS 180-4's example of a million times "a".
    const Text text(std::vector<uint8_t>(1'000'000, 'a'), Config(), "a");
    EXPECT_EQ(text.sha256(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Text, RefusesShortAndMissingFiles) {
    try {
        counted_text(100 * 136 - 1);
        FAIL();
    } catch (const InputError& error) {
        EXPECT_STREQ(error.what(),
                     "counted: the text is too short: expected at least 13600 bytes (100 blocks of "
                     "136), found 13599");
    }
    EXPECT_NO_THROW(counted_text(100 * 136));
    EXPECT_THROW(Text("/nonexistent/text", Config()), io::FileError);
    EXPECT_THROW(Text("/tmp", Config()), io::FileError);
}

TEST(Baselines, UnigramAddsOne) {
    Unigram unigram;
    unigram.count(bytes_of("aab"));
    EXPECT_DOUBLE_EQ(unigram.probability('a'), 3.0 / 259.0);
    EXPECT_DOUBLE_EQ(unigram.probability('b'), 2.0 / 259.0);
    EXPECT_DOUBLE_EQ(unigram.probability('c'), 1.0 / 259.0);
}

TEST(Baselines, BigramByHand) {
    Bigram bigram(0.75);
    bigram.count(bytes_of("abac"));  // pairs ab, ba, ac
    EXPECT_DOUBLE_EQ(bigram.probability('a', 'b'), 0.75 * 0.5 + 0.25 * 2.0 / 260.0);
    EXPECT_DOUBLE_EQ(bigram.probability('b', 'a'), 0.75 + 0.25 * 3.0 / 260.0);
    EXPECT_DOUBLE_EQ(bigram.probability('c', 'a'), 3.0 / 260.0);  // c never came before a byte
    for (const int previous : {'a', 'b', 'c', 'x'}) {
        double sum = 0.0;
        for (int byte = 0; byte < 256; ++byte) sum += bigram.probability(previous, byte);
        EXPECT_NEAR(sum, 1.0, 1e-12);
    }
}

// One pair with q = 1/2 seen n1 times and one with q = 0 seen n2 times, after the same byte. With u
// and w the unigram probabilities: n1 (q - u) / (l q + (1 - l) u) = n2 / (1 - l), which is solved
// for l.
TEST(Baselines, LambdaByHand) {
    Bigram bigram;
    bigram.count(bytes_of("abac"));
    const std::vector<uint8_t> seen = bytes_of("ab"), unseen = bytes_of("ad");
    const std::vector<std::span<const uint8_t>> parts{seen, seen, seen, unseen};
    bigram.fit(parts);
    const double q = 0.5, u = 2.0 / 260.0;
    const double lambda = (3.0 * (q - u) - u) / (4.0 * (q - u));
    EXPECT_NEAR(bigram.lambda(), lambda, 1e-9);
}

// A text of period two: the bigram knows it, the unigram needs a bit a byte.
TEST(Baselines, BitsOfAPeriodicText) {
    std::vector<uint8_t> bytes(200'000);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 2 == 0 ? 'a' : 'b';
    const Text text(bytes, Config(), "periodic");
    const Baselines baselines(text);
    const std::vector<int64_t> starts = text.cover(text.held_out_ranges(), 100);
    EXPECT_NEAR(baselines.unigram_bits(text, starts), 1.0, 0.01);
    EXPECT_NEAR(baselines.bigram_bits(text, starts), 0.0, 0.01);
}

}  // namespace
}  // namespace mok::train
