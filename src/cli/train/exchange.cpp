#include "cli/train/exchange.h"

#include <fmt/format.h>

#include <sstream>

#include "cli/common/gather.h"
#include "cli/common/rank_threads.h"

namespace mok::train {
namespace {

std::string to_text(const comm::Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Of two texts of whole lines that differ.
struct Lines {
    std::string expected, found;
};
Lines first_difference(const std::string& expected, const std::string& found) {
    std::istringstream expected_text(expected), found_text(found);
    Lines lines;
    while (lines.expected == lines.found) {
        std::getline(expected_text, lines.expected);
        std::getline(found_text, lines.found);
    }
    return lines;
}

}  // namespace

Exchange::Duty Exchange::duty() const {
    if (copies_ == Copies::OnePerRank) return {0, 1};
    return {group_.rank(), group_.size()};
}

void Exchange::meet(const char* what) const {
    if (copies_ == Copies::OneForAll) cli::meet(group_, what);
}

void Exchange::gather(const char* what, const std::vector<int64_t>& rows_of_rank,
                      std::initializer_list<WritableBytes> buffers) const {
    meet(what);
    if (copies_ == Copies::OneForAll) return;
    for (const WritableBytes& buffer : buffers) {
        cli::gather_rows(group_, rows_of_rank, buffer, what);
    }
}

void Exchange::pass_on(const char* what, int rank,
                       std::initializer_list<WritableBytes> buffers) const {
    std::vector<int64_t> rows(group_.size(), 0);
    rows[rank] = 1;
    gather(what, rows, buffers);
}

std::string Exchange::difference(const std::vector<std::string>& facts) const {
    if (copies_ == Copies::OneForAll) return "";
    std::string mine;
    for (const std::string& fact : facts) mine += fact + '\n';
    const std::vector<comm::Bytes> all = group_.state().exchange_bytes(
        group_.rank(), std::as_bytes(std::span(mine)), "comparison of the ranks");
    const std::string expected = to_text(all[0]);
    for (int r = 1; r < group_.size(); ++r) {
        const std::string found = to_text(all[r]);
        if (found == expected) continue;
        const Lines lines = first_difference(expected, found);
        return fmt::format("rank {} differs from rank 0: expected {}, found {}", r, lines.expected,
                           lines.found);
    }
    return "";
}

std::vector<int64_t> even_split(int64_t count, int num_ranks) {
    std::vector<int64_t> rows(num_ranks, count / num_ranks);
    for (int64_t r = 0; r < count % num_ranks; ++r) ++rows[r];
    return rows;
}

}  // namespace mok::train
