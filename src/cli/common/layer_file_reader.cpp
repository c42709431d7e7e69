#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "cli/common/layer_file.h"
#include "cli/common/layer_file_names.h"
#include "cli/common/memory_limit.h"

namespace mok::cli {
namespace {

constexpr const char* kTokensPerRank = "tokens_per_rank";

// What stands in the file under each letter, and the tensor that said so.
using Letters = std::map<char, int64_t>;

std::string place(const io::SafetensorsFile& file, std::string_view tensor) {
    return fmt::format("{}: tensor {}", file.path().string(), io::in_quotes(tensor));
}

template <class... Parts>
[[noreturn]] void fail(const io::SafetensorsFile& file, std::string_view tensor,
                       fmt::format_string<Parts...> text, Parts&&... parts) {
    throw io::FileError(fmt::format("{}: {}", place(file, tensor),
                                    fmt::format(text, std::forward<Parts>(parts)...)));
}

void refuse_unknown_names(const io::SafetensorsFile& file) {
    std::vector<std::string> known;
    for (const TensorRule& rule : tensor_rules()) known.push_back(rule.name);
    known.push_back(kTokensPerRank);
    for (const std::string& name : file.names()) {
        if (std::find(known.begin(), known.end(), name) != known.end()) continue;
        fail(file, name, "expected only the names {}", fmt::join(known, ", "));
    }
}

// The library's dtype, or an error that lists those of the rule.
DType dtype_of(const io::SafetensorsFile& file, const io::TensorEntry& tensor, Elements elements) {
    const auto is = [&tensor](io::DType dtype) { return tensor.dtype == dtype; };
    switch (elements) {
        case Elements::Float:
            if (is(io::DType::BF16)) return DType::BF16;
            if (is(io::DType::F32)) return DType::F32;
            fail(file, tensor.name, "expected dtype BF16 or F32, found {}",
                 dtype_name(tensor.dtype));
        case Elements::F32:
            if (is(io::DType::F32)) return DType::F32;
            fail(file, tensor.name, "expected dtype F32, found {}", dtype_name(tensor.dtype));
        case Elements::Ids:
            if (is(io::DType::I32)) return DType::I32;
            if (is(io::DType::I64)) return DType::I64;
            fail(file, tensor.name, "expected dtype I64 or I32, found {}",
                 dtype_name(tensor.dtype));
        default:
            if (is(io::DType::I64)) return DType::I64;
            fail(file, tensor.name, "expected dtype I64, found {}", dtype_name(tensor.dtype));
    }
}

std::string letters_text(std::string_view letters) {
    return fmt::format("[{}]", fmt::join(letters, ", "));
}

void check_shape(const io::SafetensorsFile& file, const io::TensorEntry& tensor,
                 std::string_view letters, Letters& values) {
    if (tensor.shape.size() != letters.size()) {
        fail(file, tensor.name, "expected {} dimensions {}, found shape [{}]", letters.size(),
             letters_text(letters), fmt::join(tensor.shape, ", "));
    }
    std::vector<int64_t> want;
    for (size_t dim = 0; dim < letters.size(); ++dim) {
        want.push_back(values.try_emplace(letters[dim], tensor.shape[dim]).first->second);
    }
    if (want != tensor.shape) {
        fail(file, tensor.name, "expected shape {} = [{}] after the tensors before it, found [{}]",
             letters_text(letters), fmt::join(want, ", "), fmt::join(tensor.shape, ", "));
    }
}

// Without data; a shape that is not in the file gives an absent tensor.
ConstTensor checked_view(const io::SafetensorsFile& file, const TensorRule& rule, Letters& values) {
    const auto tensor = file.find(rule.name);
    if (!tensor) {
        if (rule.required) fail(file, rule.name, "expected it in the file, found none");
        return {};
    }
    check_shape(file, *tensor, rule.letters, values);
    ConstTensor view;
    view.dtype = dtype_of(file, *tensor, rule.elements);
    view.data = tensor->data.data();
    view.dims = static_cast<int>(tensor->shape.size());
    int64_t step = 1;
    for (int dim = view.dims - 1; dim >= 0; --dim) {
        view.shape[dim] = tensor->shape[dim];
        view.stride[dim] = step;
        step *= view.shape[dim];
    }
    return view;
}

void check_shared_expert(const io::SafetensorsFile& file, const GlobalInputs& in) {
    const Weights& w = in.weights;
    const bool has_one =
        w.shared_gate.present() || w.shared_up.present() || w.shared_down.present();
    const bool has_all =
        w.shared_gate.present() && w.shared_up.present() && w.shared_down.present();
    if (has_one && !has_all) {
        throw io::FileError(fmt::format(
            "{}: expected shared_gate_proj, shared_up_proj and shared_down_proj together, found "
            "only some of them",
            file.path().string()));
    }
    if (in.shared_weights.present() && !has_all) {
        fail(file, "shared_weights", "expected the shared expert's tensors beside it, found none");
    }
}

bool is_aligned(const ConstTensor& view) {
    return reinterpret_cast<uintptr_t>(view.data) % dtype_bytes(view.dtype) == 0;
}

int64_t bytes_of(const ConstTensor& view) {
    return view.shape[0] * view.stride[0] * dtype_bytes(view.dtype);
}

void copy_unaligned(LayerInput& input) {
    double copied = 0.0;
    for (const TensorRule& rule : tensor_rules()) {
        const ConstTensor& view = rule.in(input.tensors);
        if (view.present() && !is_aligned(view)) copied += static_cast<double>(bytes_of(view));
    }
    require_memory(copied, "a copy of the unaligned tensors");
    for (const TensorRule& rule : tensor_rules()) {
        ConstTensor& view = rule.in(input.tensors);
        if (!view.present() || is_aligned(view)) continue;
        const int64_t bytes = bytes_of(view);
        // A byte more: without elements there must still be an address.
        input.copies.emplace_back(bytes + 1);
        std::memcpy(input.copies.back().data(), view.data, bytes);
        view.data = input.copies.back().data();
    }
}

std::vector<int64_t> read_tokens_per_rank(const io::SafetensorsFile& file) {
    const auto tensor = file.find(kTokensPerRank);
    if (!tensor) return {};
    Letters own;
    check_shape(file, *tensor, "R", own);
    dtype_of(file, *tensor, Elements::I64);
    if (tensor->shape[0] == 0) {
        fail(file, kTokensPerRank, "expected one entry for every rank, found none");
    }
    return io::copy_elements<int64_t>(*tensor);
}

}  // namespace

LayerInput read_layer_input(const std::filesystem::path& path) {
    LayerInput input{io::SafetensorsFile(path), {}, {}, {}, {}};
    refuse_unknown_names(input.file);
    Letters letters;
    for (const TensorRule& rule : tensor_rules()) {
        rule.in(input.tensors) = checked_view(input.file, rule, letters);
    }
    check_shared_expert(input.file, input.tensors);
    input.tokens_per_rank = read_tokens_per_rank(input.file);
    input.shape.hidden = letters['H'];
    input.shape.intermediate = letters['I'];
    input.shape.num_experts = letters['E'];
    input.shape.top_k = letters['K'];
    input.shape.shared_intermediate = letters['S'];  // 0 where there is none
    copy_unaligned(input);
    return input;
}

}  // namespace mok::cli
