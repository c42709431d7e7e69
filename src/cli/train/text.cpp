#include "cli/train/text.h"

#include <fmt/format.h>

#include "cli/common/random.h"
#include "cli/io/mapped_file.h"
#include "cli/io/sha256.h"

namespace mok::train {
namespace {

constexpr int64_t kNumBlocks = 100;
constexpr int64_t kHeldOutEvery = 10;
constexpr uint64_t kBatchStream = 1;

std::vector<uint8_t> read_bytes(const std::filesystem::path& path) {
    const io::MappedFile file(path);
    const auto* first = reinterpret_cast<const uint8_t*>(file.bytes().data());
    return {first, first + file.bytes().size()};
}

}  // namespace

Text::Text(const std::filesystem::path& path, const Config& config)
    : Text(read_bytes(path), config, path.string()) {}

Text::Text(std::vector<uint8_t> bytes, const Config& config, const std::string& name)
    : bytes_(std::move(bytes)), context_(config.context_bytes()), length_(config.sequence_length) {
    split(name);
    sha256_ = io::sha256_hex(std::as_bytes(std::span(bytes_)));
}

void Text::split(const std::string& name) {
    const int64_t size = static_cast<int64_t>(bytes_.size());
    if (size < kNumBlocks * window()) {
        throw InputError(fmt::format(
            "{}: the text is too short: expected at least {} bytes ({} blocks of {}), found {}",
            name, kNumBlocks * window(), kNumBlocks, window(), size));
    }
    for (int64_t last = kHeldOutEvery; last <= kNumBlocks; last += kHeldOutEvery) {
        const int64_t begin = size * (last - kHeldOutEvery) / kNumBlocks;
        const int64_t cut = size * (last - 1) / kNumBlocks;
        const int64_t end = size * last / kNumBlocks;
        train_.push_back({begin, cut});
        held_out_.push_back({cut, end});
        num_starts_ += cut - begin - window() + 1;
    }
}

std::span<const uint8_t> Text::sequence(int64_t start) const {
    return bytes().subspan(start, window());
}

std::span<const uint8_t> Text::targets(int64_t start) const {
    return bytes().subspan(start + context_, length_);
}

int64_t Text::draw_start(uint64_t seed, int64_t step, int64_t index) const {
    const uint64_t stream = cli::random_at(seed, kBatchStream, static_cast<uint64_t>(step));
    uint64_t number = cli::random_at(stream, 0, static_cast<uint64_t>(index)) % num_starts_;
    for (const Range& range : train_) {
        const uint64_t starts = range.end - range.begin - window() + 1;
        if (number < starts) return range.begin + static_cast<int64_t>(number);
        number -= starts;
    }
    throw std::logic_error("Text::draw_start: the ranges and num_starts_ differ");
}

std::vector<int64_t> Text::cover(const std::vector<Range>& ranges, int64_t most) const {
    std::vector<int64_t> all;
    for (const Range& range : ranges) {
        for (int64_t start = range.begin; start + window() <= range.end; start += length_) {
            all.push_back(start);
        }
    }
    const int64_t count = static_cast<int64_t>(all.size());
    if (count <= most) return all;
    std::vector<int64_t> chosen(most);
    for (int64_t i = 0; i < most; ++i) chosen[i] = all[i * count / most];
    return chosen;
}

}  // namespace mok::train
