#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/common/random_case.h"
#include "cli/io/safetensors.h"

// Input files of `mok run` written tensor by tensor, so that a test can change any of them.
namespace mok {

struct FileTensor {
    io::DType dtype;
    std::vector<int64_t> shape;
    std::string bytes;
};
using FileTensors = std::map<std::string, FileTensor>;

template <class T>
std::string bytes_of(const std::vector<T>& elements) {
    return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T)};
}

inline void write_file(const std::filesystem::path& path, const FileTensors& tensors) {
    std::vector<io::TensorEntry> entries;
    for (const auto& [name, t] : tensors) {
        entries.push_back({name, t.dtype, t.shape, std::as_bytes(std::span(t.bytes))});
    }
    io::write_safetensors(path, entries);
}

// Every tensor of a case under its name, floating ones in BF16, ids in I64.
inline FileTensors file_tensors(const cli::RandomCase& c) {
    const int64_t n = c.num_tokens, h = c.shape.hidden, i = c.shape.intermediate;
    const int64_t e = c.shape.num_experts, k = c.shape.top_k, s = c.shape.shared_intermediate;
    FileTensors all;
    const auto bf16 = [&](const char* name, const std::vector<Bf16>& t,
                          std::vector<int64_t> shape) {
        if (!t.empty()) all[name] = {io::DType::BF16, std::move(shape), bytes_of(t)};
    };
    bf16("hidden_states", c.x, {n, h});
    bf16("gate_proj", c.gate, {e, i, h});
    bf16("up_proj", c.up, {e, i, h});
    bf16("down_proj", c.down, {e, h, i});
    bf16("gate_bias", c.gate_bias, {e, i});
    bf16("up_bias", c.up_bias, {e, i});
    bf16("down_bias", c.down_bias, {e, h});
    bf16("shared_gate_proj", c.shared_gate, {s, h});
    bf16("shared_up_proj", c.shared_up, {s, h});
    bf16("shared_down_proj", c.shared_down, {h, s});
    bf16("grad_output", c.grad_output, {n, h});
    const std::vector<int64_t> ids(c.topk_ids.begin(), c.topk_ids.end());
    all["topk_ids"] = {io::DType::I64, {n, k}, bytes_of(ids)};
    all["topk_weights"] = {io::DType::F32, {n, k}, bytes_of(c.topk_weights)};
    if (!c.shared_weights.empty()) {
        all["shared_weights"] = {io::DType::F32, {n}, bytes_of(c.shared_weights)};
    }
    return all;
}

// BF16 widened to F32 with the lower half filled to just below a half of the last place: rounding
// to nearest gives the same BF16 again.
inline FileTensor widened(const FileTensor& t) {
    FileTensor wide{io::DType::F32, t.shape, ""};
    for (size_t at = 0; at < t.bytes.size(); at += 2) {
        wide.bytes += "\xff\x7f" + t.bytes.substr(at, 2);
    }
    return wide;
}

inline cli::CaseOptions small_layer() {
    cli::CaseOptions o;
    o.shape.hidden = 64;
    o.shape.intermediate = 48;
    o.shape.num_experts = 5;
    o.shape.top_k = 2;
    o.num_tokens = 70;
    return o;
}

inline cli::CaseOptions full_layer() {
    cli::CaseOptions o = small_layer();
    o.shape.shared_intermediate = 40;
    o.biases = true;
    o.shared_weights = true;
    o.masked = 0.1;
    o.duplicates = 0.1;
    return o;
}

}  // namespace mok
