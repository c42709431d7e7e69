#include "cli/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "cli/io/safetensors_header.h"

namespace mok::io {

// The format is little-endian; so is every processor this program is built for.
static_assert(std::endian::native == std::endian::little);

namespace {

std::uint64_t read_header_length(std::span<const std::byte> bytes, std::string_view file) {
    if (bytes.size() < kLengthBytes) {
        throw FileError(
            fmt::format("{}: expected a safetensors file of at least {} bytes, found {}", file,
                        kLengthBytes, bytes.size()));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kMaxHeaderBytes) {
        throw FileError(
            fmt::format("{}: expected a safetensors header of at most {} bytes, found length {}",
                        file, kMaxHeaderBytes, length));
    }
    if (length > bytes.size() - kLengthBytes) {
        throw FileError(
            fmt::format("{}: expected a header of {} bytes, found a file that ends after {}", file,
                        length, bytes.size() - kLengthBytes));
    }
    return length;
}

void check_names(const std::vector<HeaderEntry>& sorted_by_name, std::string_view file) {
    const auto repeated = std::adjacent_find(
        sorted_by_name.begin(), sorted_by_name.end(),
        [](const HeaderEntry& a, const HeaderEntry& b) { return a.name == b.name; });
    if (repeated != sorted_by_name.end()) {
        throw FileError(fmt::format("{}: expected each name once, found it twice",
                                    tensor_place(file, repeated->name)));
    }
}

// begin <= end <= the data's size, and as many bytes as dtype and shape say.
void check_extent(const HeaderEntry& entry, std::uint64_t data_bytes, std::string_view file) {
    const std::string place = tensor_place(file, entry.name);
    if (entry.begin > entry.end || entry.end > data_bytes) {
        throw FileError(
            fmt::format("{}: expected data_offsets with begin <= end <= {} (the data's bytes), "
                        "found [{}, {}]",
                        place, data_bytes, entry.begin, entry.end));
    }
    const std::uint64_t expected = tensor_bytes(entry.dtype, entry.shape, place);
    if (entry.end - entry.begin != expected) {
        throw FileError(fmt::format(
            "{}: expected {} bytes for its dtype and shape, found {} in data_offsets [{}, {}]",
            place, expected, entry.end - entry.begin, entry.begin, entry.end));
    }
}

// In the order of their offsets the tensors follow one another from the first byte to the last.
void check_cover(const std::vector<HeaderEntry>& entries, std::uint64_t data_bytes,
                 std::string_view file) {
    std::vector<const HeaderEntry*> by_offset;
    by_offset.reserve(entries.size());
    for (const HeaderEntry& entry : entries) by_offset.push_back(&entry);
    std::sort(by_offset.begin(), by_offset.end(), [](const HeaderEntry* a, const HeaderEntry* b) {
        return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    std::uint64_t covered = 0;
    for (const HeaderEntry* entry : by_offset) {
        if (entry->begin != covered) {
            throw FileError(fmt::format(
                "{}: expected it to begin at byte {} of the data, where the tensors before it end, "
                "found {} at {}",
                tensor_place(file, entry->name), covered,
                entry->begin < covered ? "an overlap" : "a hole", entry->begin));
        }
        covered = entry->end;
    }
    if (covered != data_bytes) {
        throw FileError(fmt::format("{}: expected {} bytes of data for its tensors, found {}", file,
                                    covered, data_bytes));
    }
}

}  // namespace

SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
    const std::uint64_t header_bytes = read_header_length(bytes, file);
    const auto json = bytes.subspan(kLengthBytes, header_bytes);
    const auto data = bytes.subspan(kLengthBytes + header_bytes);
    Header header = parse_header({reinterpret_cast<const char*>(json.data()), json.size()}, file);

    std::sort(header.entries.begin(), header.entries.end(),
              [](const HeaderEntry& a, const HeaderEntry& b) { return a.name < b.name; });
    check_names(header.entries, file);
    for (const HeaderEntry& entry : header.entries) check_extent(entry, data.size(), file);
    check_cover(header.entries, data.size(), file);

    SafetensorsContent content;
    content.metadata = std::move(header.metadata);
    content.tensors.reserve(header.entries.size());
    for (HeaderEntry& entry : header.entries) {
        content.tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                                   data.subspan(entry.begin, entry.end - entry.begin)});
    }
    return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), content_(parse_safetensors(file_.bytes(), path.string())) {}

std::optional<TensorEntry> SafetensorsFile::find(std::string_view name) const {
    const auto& tensors = content_.tensors;
    const auto found = std::lower_bound(
        tensors.begin(), tensors.end(), name,
        [](const TensorEntry& tensor, std::string_view wanted) { return tensor.name < wanted; });
    if (found == tensors.end() || found->name != name) return std::nullopt;
    return *found;
}

std::vector<std::string> SafetensorsFile::names() const {
    std::vector<std::string> names;
    names.reserve(content_.tensors.size());
    for (const TensorEntry& tensor : content_.tensors) names.push_back(tensor.name);
    return names;
}

}  // namespace mok::io
