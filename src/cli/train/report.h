#pragma once

#include <filesystem>
#include <string>

#include "cli/train/baselines.h"
#include "cli/train/checkpoint.h"
#include "cli/train/training.h"

namespace mok::train {

// The table at the end of a run: bits per byte of the model and the baselines, tokens per expert.
std::string report_table(const Text& text, const Baselines& baselines, const RunResult& result);

// The loss of every step as a picture (SVG), with the baselines' held-out bits per byte as lines.
// Throws io::FileError.
void write_loss_curve(const std::filesystem::path& path, const Text& text,
                      const Baselines& baselines, const RunState& state, const RunResult& result);

}  // namespace mok::train
