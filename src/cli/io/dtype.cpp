#include "cli/io/dtype.h"

#include <array>

namespace mok::io {

namespace {

struct DTypeRow {
    std::string_view name;
    std::size_t num_bytes;
};

// In the order of the enumeration.
constexpr std::array<DTypeRow, 17> kRows{{{"BOOL", 1},
                                          {"U8", 1},
                                          {"I8", 1},
                                          {"F8_E4M3", 1},
                                          {"F8_E5M2", 1},
                                          {"F8_E8M0", 1},
                                          {"I16", 2},
                                          {"U16", 2},
                                          {"F16", 2},
                                          {"BF16", 2},
                                          {"I32", 4},
                                          {"U32", 4},
                                          {"F32", 4},
                                          {"I64", 8},
                                          {"U64", 8},
                                          {"F64", 8},
                                          {"C64", 8}}};
static_assert(kRows.size() == static_cast<std::size_t>(DType::C64) + 1);

const DTypeRow& row_of(DType dtype) {
    return kRows.at(static_cast<std::size_t>(dtype));
}

}  // namespace

std::string_view dtype_name(DType dtype) {
    return row_of(dtype).name;
}

std::size_t dtype_bytes(DType dtype) {
    return row_of(dtype).num_bytes;
}

std::optional<DType> dtype_from_name(std::string_view name) {
    for (std::size_t row = 0; row < kRows.size(); ++row) {
        if (kRows[row].name == name) return static_cast<DType>(row);
    }
    return std::nullopt;
}

std::string all_dtype_names() {
    std::string names;
    for (const DTypeRow& row : kRows) {
        if (!names.empty()) names += ", ";
        names += row.name;
    }
    return names;
}

}  // namespace mok::io
