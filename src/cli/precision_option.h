#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "openmok/precision.h"

namespace mok::cli {

// --precision: bf16 (the default), fp8_block or mxfp8.
void add_precision_option(CLI::App& command, std::string& name);

// Throws std::invalid_argument for another name.
Precision precision_of(const std::string& name);

}  // namespace mok::cli
