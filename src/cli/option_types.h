#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

// Validators of options, with the project's sentences: "--ranks: expected a whole number from 1 to
// 72, found "abc"". They run before CLI11 converts the text.
namespace mok::cli {

// A decimal integer without zeros in front, in [low, high]; any that 64 bits hold.
CLI::Validator whole_number(int64_t low, int64_t high);
CLI::Validator whole_number();

// A decimal number, inf included, that is above `low`. NaN is refused.
CLI::Validator number_above(double low);

// A finite decimal number.
CLI::Validator finite_number();

// Any text but none: of a file, a model, a tensor.
CLI::Validator a_name();

}  // namespace mok::cli
