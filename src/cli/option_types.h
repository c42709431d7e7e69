#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

// Validators of options, with the project's sentences: "--ranks: expected a whole number from 1 to
// 72, found "abc"". They run before CLI11 converts the text.
namespace mok::cli {

// A decimal integer in [low, high].
CLI::Validator whole_number(int64_t low, int64_t high);

// A decimal number, inf included, that is above `low`. NaN is refused.
CLI::Validator number_above(double low);

// A finite decimal number.
CLI::Validator finite_number();

}  // namespace mok::cli
