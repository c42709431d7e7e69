#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "cli/io/atomic_file.h"
#include "cli/io/safetensors.h"
#include "cli/io/safetensors_header.h"

namespace mok::io {

namespace {

std::string json_string(const std::string& text, std::string_view file) {
    try {
        return nlohmann::json(text).dump();
    } catch (const nlohmann::json::type_error&) {
        throw FileError(fmt::format(
            "{}: expected names and metadata in UTF-8, found a string of {} bytes that is not",
            file, text.size()));
    }
}

void check_tensor(const TensorEntry& tensor, std::string_view file) {
    const std::string place = tensor_place(file, tensor.name);
    if (tensor.name == kMetadataKey) {
        throw FileError(
            fmt::format("{}: expected another name, for the format reserves it", place));
    }
    if (tensor.shape.size() > kMaxDimensions) {
        throw FileError(fmt::format("{}: expected at most {} dimensions, found {}", place,
                                    kMaxDimensions, tensor.shape.size()));
    }
    const std::uint64_t expected = tensor_bytes(tensor.dtype, tensor.shape, place);
    if (tensor.data.size() != expected) {
        throw FileError(fmt::format("{}: expected {} bytes for its dtype and shape, found {}",
                                    place, expected, tensor.data.size()));
    }
}

// The tensors in the order of the file: larger elements first, then by name.
std::vector<const TensorEntry*> file_order(std::span<const TensorEntry> tensors,
                                           std::string_view file) {
    std::set<std::string_view> names;
    std::vector<const TensorEntry*> order;
    order.reserve(tensors.size());
    for (const TensorEntry& tensor : tensors) {
        check_tensor(tensor, file);
        if (!names.insert(tensor.name).second) {
            throw FileError(fmt::format("{}: expected each name once, found it twice",
                                        tensor_place(file, tensor.name)));
        }
        order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
        const std::size_t a_bytes = dtype_bytes(a->dtype);
        const std::size_t b_bytes = dtype_bytes(b->dtype);
        return std::tie(b_bytes, a->name) < std::tie(a_bytes, b->name);
    });
    return order;
}

// The JSON header, padded with spaces to a multiple of 8 bytes so that the data is aligned to 8.
std::string make_header(const std::vector<const TensorEntry*>& order, const Metadata& metadata,
                        std::string_view file) {
    std::vector<std::string> members;
    if (!metadata.empty()) {
        std::vector<std::string> pairs;
        for (const auto& [key, value] : metadata) {
            pairs.push_back(json_string(key, file) + ":" + json_string(value, file));
        }
        members.push_back(fmt::format("\"{}\":{{{}}}", kMetadataKey, fmt::join(pairs, ",")));
    }
    std::uint64_t begin = 0;
    for (const TensorEntry* tensor : order) {
        const std::uint64_t end = begin + tensor->data.size();
        members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                      json_string(tensor->name, file), dtype_name(tensor->dtype),
                                      fmt::join(tensor->shape, ","), begin, end));
        begin = end;
    }
    std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
    header.append((8 - header.size() % 8) % 8, ' ');
    if (header.size() > kMaxHeaderBytes) {
        throw FileError(fmt::format("{}: expected a header of at most {} bytes, found {}", file,
                                    kMaxHeaderBytes, header.size()));
    }
    return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorEntry> tensors,
                       const Metadata& metadata) {
    const std::vector<const TensorEntry*> order = file_order(tensors, path.string());
    const std::string header = make_header(order, metadata, path.string());
    const std::uint64_t header_bytes = header.size();

    AtomicFile file(path);
    file.write(std::as_bytes(std::span(&header_bytes, 1)));
    file.write(header);
    for (const TensorEntry* tensor : order) file.write(tensor->data);
    file.commit();
}

}  // namespace mok::io
