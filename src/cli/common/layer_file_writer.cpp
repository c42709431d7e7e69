#include <cstring>

#include "cli/common/layer_file.h"
#include "cli/common/layer_file_names.h"

namespace mok::cli {
namespace {

io::DType file_dtype(DType dtype) {
    switch (dtype) {
        case DType::BF16:
            return io::DType::BF16;
        case DType::F32:
            return io::DType::F32;
        case DType::I32:
            return io::DType::I32;
        default:
            return io::DType::I64;
    }
}

std::vector<int64_t> shape_of(const ConstTensor& t) {
    return {t.shape.begin(), t.shape.begin() + t.dims};
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& elements) {
    return std::as_bytes(std::span(elements));
}

}  // namespace

void write_layer_input(const std::filesystem::path& path, const GlobalInputs& inputs,
                       const std::vector<int64_t>& tokens_per_rank) {
    std::vector<io::TensorEntry> tensors;
    for (const TensorRule& rule : tensor_rules()) {
        const ConstTensor& t = rule.in(inputs);
        if (!t.present()) continue;
        const auto* data = static_cast<const std::byte*>(t.data);
        const size_t bytes = t.shape[0] * t.stride[0] * dtype_bytes(t.dtype);
        tensors.push_back({rule.name, file_dtype(t.dtype), shape_of(t), {data, bytes}});
    }
    if (!tokens_per_rank.empty()) {
        tensors.push_back({"tokens_per_rank",
                           io::DType::I64,
                           {std::ssize(tokens_per_rank)},
                           bytes_of(tokens_per_rank)});
    }
    io::write_safetensors(path, tensors);
}

int write_layer_result(const std::filesystem::path& path, const GlobalInputs& inputs,
                       const GlobalResult& result, const io::Metadata& metadata) {
    const std::vector<int64_t> rows = shape_of(inputs.x);
    std::vector<io::TensorEntry> tensors{
        {"output", io::DType::BF16, rows, bytes_of(result.output)}};
    if (inputs.grad_output.present()) {
        tensors.push_back({"grad_hidden_states", io::DType::BF16, rows, bytes_of(result.d_x)});
        for (const TensorRule& rule : tensor_rules()) {
            const ConstTensor& t = rule.in(inputs);
            if (rule.grad == nullptr || !t.present()) continue;
            tensors.push_back({std::string("grad_") + rule.name, io::DType::F32, shape_of(t),
                               bytes_of(result.*rule.grad)});
        }
    }
    io::write_safetensors(path, tensors, metadata);
    return static_cast<int>(tensors.size());
}

}  // namespace mok::cli
