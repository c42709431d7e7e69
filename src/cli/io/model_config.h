#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "openmok/activation.h"

namespace mok::io {

// The mixture-of-experts layer of one model.
struct ModelShape {
    std::string name;
    int hidden = 0;               // H
    int intermediate = 0;         // I, of one expert
    int experts = 0;              // E
    int top_k = 0;                // K, 1 <= K <= E
    int shared_intermediate = 0;  // width of all shared experts together, 0 for none
    int local_ep64 = 0;           // experts of a rank at 64 ranks, 0 where 64 does not divide E
    Activation activation;
};

// The models of data/shapes.json, which is compiled in, in the order of their names.
const std::vector<ModelShape>& named_models();

// Throws std::invalid_argument, one sentence with all names, where there is no such model.
const ModelShape& named_model(std::string_view name);

// Reads a Hugging Face config.json; the layer may also stand in its text_config or
// language_config. The field names of each quantity are in model_config.cpp. Fields for shared
// experts may be absent (none); all others are required, and hidden_act must be silu. The name is
// the file's model_type. Throws FileError naming the file, the quantity, and the names looked for.
ModelShape read_model_config(const std::filesystem::path& path);

// The same from the text of the file; `file` is its name in errors.
ModelShape parse_model_config(std::string_view text, std::string_view file);

}  // namespace mok::io
