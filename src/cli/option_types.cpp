#include "cli/option_types.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "cli/io/file_error.h"

namespace mok::cli {
namespace {

template <class Number>
std::optional<Number> parse_all(const std::string& text) {
    Number value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) return std::nullopt;
    return value;
}

CLI::Validator integer_in(int64_t low, int64_t high, const std::string& expected) {
    return CLI::Validator(
        [low, high, expected](std::string& text) -> std::string {
            const std::optional<int64_t> value = parse_all<int64_t>(text);
            // With zeros in front CLI11 would take it for octal.
            const bool plain = value && text == std::to_string(*value);
            if (plain && *value >= low && *value <= high) return {};
            return fmt::format("expected {}, found {}", expected, io::in_quotes(text));
        },
        "", "");
}

template <class Holds>
CLI::Validator number_that(const std::string& expected, Holds holds) {
    return CLI::Validator(
        [expected, holds](std::string& text) -> std::string {
            const std::optional<double> value = parse_all<double>(text);
            if (value && holds(*value)) return {};
            return fmt::format("expected {}, found {}", expected, io::in_quotes(text));
        },
        "", "");
}

}  // namespace

CLI::Validator whole_number(int64_t low, int64_t high) {
    return integer_in(low, high, fmt::format("a whole number from {} to {}", low, high));
}

CLI::Validator whole_number() {
    return integer_in(INT64_MIN, INT64_MAX, "a whole number");
}

CLI::Validator number_above(double low) {
    return number_that(fmt::format("a number above {}", low),
                       [low](double value) { return value > low; });
}

CLI::Validator a_name() {
    return CLI::Validator(
        [](std::string& text) -> std::string {
            return text.empty() ? "expected a name, found \"\"" : "";
        },
        "", "");
}

CLI::Validator finite_number() {
    return number_that("a finite number", [](double value) { return std::isfinite(value); });
}

}  // namespace mok::cli
