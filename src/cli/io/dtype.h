#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mok::io {

// Element types of the safetensors format that are whole bytes. Its sub-byte types (F4, F6_*) are
// refused by name.
enum class DType {
    Bool,
    U8,
    I8,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
    C64,
};

// The name in the file, e.g. "BF16".
std::string_view dtype_name(DType dtype);

// Bytes of one element.
std::size_t dtype_bytes(DType dtype);

// Nothing where no DType has this name.
std::optional<DType> dtype_from_name(std::string_view name);

// All names, separated by ", ", for error sentences.
std::string all_dtype_names();

}  // namespace mok::io
