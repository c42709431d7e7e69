#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/dtype.h"
#include "cli/io/file_error.h"
#include "cli/io/mapped_file.h"

// The safetensors format (github.com/huggingface/safetensors, "Format"): 8 bytes, little-endian,
// the header's length N; N bytes of JSON, {"NAME": {"dtype", "shape", "data_offsets": [BEGIN,
// END]},
// ..., "__metadata__": {string: string}}; then the data, which the tensors cover without overlap or
// hole, offsets counted from its first byte.
namespace mok::io {

using Metadata = std::map<std::string, std::string>;

// One tensor, row-major, little-endian. `data` has product(shape) * dtype_bytes(dtype) bytes and
// any alignment: copy elements out, never cast the pointer.
struct TensorEntry {
    std::string name;
    DType dtype = DType::U8;
    std::vector<std::int64_t> shape;  // empty for a scalar
    std::span<const std::byte> data;
};

// The elements of `tensor` as a T of the same size.
template <typename T>
std::vector<T> copy_elements(const TensorEntry& tensor) {
    if (sizeof(T) != dtype_bytes(tensor.dtype)) {
        throw std::logic_error("copy_elements: T and the dtype differ in size");
    }
    std::vector<T> elements(tensor.data.size() / sizeof(T));
    if (!elements.empty()) std::memcpy(elements.data(), tensor.data.data(), tensor.data.size());
    return elements;
}

// A file's tensors by name; the data points into the bytes that were parsed.
struct SafetensorsContent {
    std::vector<TensorEntry> tensors;  // sorted by name, each name once
    Metadata metadata;
};

// Parses the bytes of a whole file; `file` is its name in errors. Throws FileError, and nothing
// else, for every byte string that is not a valid file. Time and memory are linear (n log n in the
// number of tensors) in the header's length, which is at most 100,000,000 bytes as in the reference
// implementation. Stricter than that one: the header's first byte is '{', a tensor has no fields
// but the three, no name or key comes twice, the metadata is never null, a tensor has at most 64
// dimensions, and the product of the non-zero ones and the element's bytes fits 63 bits.
SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

// A safetensors file, mapped for as long as the object lives.
class SafetensorsFile {
  public:
    explicit SafetensorsFile(const std::filesystem::path& path);

    std::optional<TensorEntry> find(std::string_view name) const;
    std::vector<std::string> names() const;  // sorted
    const std::vector<TensorEntry>& tensors() const { return content_.tensors; }
    const Metadata& metadata() const { return content_.metadata; }
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
    MappedFile file_;
    SafetensorsContent content_;
};

// Writes the file atomically. Order: larger elements first, then by name, so that every tensor is
// aligned to its element; equal tensors and metadata give equal bytes. Throws FileError (and
// writes nothing) for a repeated or reserved name, a name that is not UTF-8, a negative dimension,
// and data whose size is not that of dtype and shape.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorEntry> tensors,
                       const Metadata& metadata = {});

}  // namespace mok::io
