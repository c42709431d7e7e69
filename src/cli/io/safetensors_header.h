#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/dtype.h"
#include "cli/io/safetensors.h"

// The JSON header of a safetensors file; used by its reader and writer only.
namespace mok::io {

inline constexpr std::size_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxDimensions = 64;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct HeaderEntry {
    std::string name;
    DType dtype = DType::U8;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  // bytes from the start of the data
    std::uint64_t end = 0;
};

struct Header {
    std::vector<HeaderEntry> entries;  // in the order of the file; names may repeat
    Metadata metadata;
};

// Checks the JSON and the form of every entry, not the data's layout. Throws FileError.
Header parse_header(std::string_view json, std::string_view file);

// Bytes of a tensor. Throws FileError where a dimension is negative or the product of the non-zero
// dimensions and the element's size exceeds 63 bits; `where` begins the sentence.
std::uint64_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape,
                           std::string_view where);

// "FILE: tensor "NAME"", the beginning of an error's sentence.
std::string tensor_place(std::string_view file, std::string_view name);

}  // namespace mok::io
