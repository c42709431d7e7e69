#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/train/config.h"

namespace mok::train {

struct Range {
    int64_t begin = 0;
    int64_t end = 0;
};

// A text in two parts. It is cut into 100 blocks of equal length; every tenth, from the tenth on,
// is held out, so that both parts come from all over the text. A sequence never crosses from one
// part into the other: a train range is nine blocks in a row, a held-out range one block.
class Text {
  public:
    // Throws InputError for a file that is missing, unreadable or too short for the config.
    Text(const std::filesystem::path& path, const Config& config);
    // The same for bytes in memory; `name` begins the error's sentence.
    Text(std::vector<uint8_t> bytes, const Config& config, const std::string& name);

    std::span<const uint8_t> bytes() const { return bytes_; }
    const std::string& sha256() const { return sha256_; }
    const std::vector<Range>& train_ranges() const { return train_; }
    const std::vector<Range>& held_out_ranges() const { return held_out_; }

    // Bytes of a sequence with its context: context_bytes + sequence_length.
    int64_t window() const { return context_ + length_; }
    std::span<const uint8_t> sequence(int64_t start) const;
    std::span<const uint8_t> targets(int64_t start) const;

    // The start of sequence `index` (0..num_sequences-1) of step `step`: uniform over every start
    // whose window lies in one train range, drawn from (seed, step, index) alone.
    int64_t draw_start(uint64_t seed, int64_t step, int64_t index) const;
    // Starts of the sequences that cover the ranges without overlap of their targets; where these
    // are more than `most`, that many of them, evenly spread.
    std::vector<int64_t> cover(const std::vector<Range>& ranges, int64_t most) const;

  private:
    void split(const std::string& name);

    std::vector<uint8_t> bytes_;
    std::string sha256_;
    int64_t context_;
    int64_t length_;
    std::vector<Range> train_;
    std::vector<Range> held_out_;
    int64_t num_starts_ = 0;  // over all train ranges
};

}  // namespace mok::train
