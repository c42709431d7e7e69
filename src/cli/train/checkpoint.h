#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "cli/train/config.h"
#include "cli/train/parameters.h"

namespace mok::train {

// Where a run stands: what the next step depends on besides configuration and text.
struct RunState {
    int64_t steps_done = 0;
    std::vector<float> losses;  // [steps_done], bits per byte of each step's batch
};

// A safetensors file: every weight under its name, its Adam moments as "adam.first.NAME" and
// "adam.second.NAME", "loss" [steps_done], all F32; metadata: "format", "step", "text_sha256",
// "hash" (Parameters::hash) and "config.FIELD" for every field of Config::fields. Written whole or
// not at all. Throws io::FileError.
void write_checkpoint(const std::filesystem::path& path, const Config& config,
                      const std::string& text_sha256, const Parameters& parameters,
                      const RunState& state);

// Fills `parameters`. Throws InputError for a checkpoint of another configuration or text,
// io::FileError for a file that cannot be read.
RunState read_checkpoint(const std::filesystem::path& path, const Config& config,
                         const std::string& text_sha256, Parameters& parameters);

}  // namespace mok::train
