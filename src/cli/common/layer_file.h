#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "cli/common/global_layer.h"
#include "cli/io/safetensors.h"

// The files of `mok run`: one layer and one global batch, and what the layer makes of them.
//
// Input. Floating tensors are BF16 or F32 unless said otherwise; letters as in openmok/layer.h, N
// the tokens of all ranks:
//     hidden_states [N, H]; topk_ids [N, K] I64 or I32; topk_weights [N, K] F32;
//     gate_proj, up_proj [E, I, H]; down_proj [E, H, I];
//     optional: gate_bias, up_bias [E, I]; down_bias [E, H];
//     optional, all three or none: shared_gate_proj, shared_up_proj [S, H]; shared_down_proj [H,
//     S]; optional, with those: shared_weights [N] F32; optional: grad_output [N, H];
//     tokens_per_rank [R] I64.
// Output: output [N, H] BF16; with grad_output also grad_hidden_states [N, H] BF16,
// grad_topk_weights [N, K] F32, and grad_ + the name of every weight, bias and shared tensor of the
// input, F32, of the same shape.
namespace mok::cli {

struct LayerInput {
    io::SafetensorsFile file;
    LayerShape shape;      // its activation is the default: the file does not hold one
    GlobalInputs tensors;  // views of the file or, of tensors that it does not align, of copies
    std::vector<int64_t> tokens_per_rank;  // empty: not in the file
    std::vector<std::vector<std::byte>> copies;
};

// Throws io::FileError, naming file and tensor, for a file that is not of the form above: names
// that are not in the list included, so that a misspelt optional tensor is not silently left out.
LayerInput read_layer_input(const std::filesystem::path& path);

// Writes a batch as a file that read_layer_input takes.
void write_layer_input(const std::filesystem::path& path, const GlobalInputs& inputs,
                       const std::vector<int64_t>& tokens_per_rank);

// Writes a result, atomically. `inputs` says which gradients there are. Returns the number of
// tensors.
int write_layer_result(const std::filesystem::path& path, const GlobalInputs& inputs,
                       const GlobalResult& result, const io::Metadata& metadata);

}  // namespace mok::cli
