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
    return CLI::Validator(
        [low, high](std::string& text) -> std::string {
            const std::optional<int64_t> value = parse_all<int64_t>(text);
            if (!value || *value < low || *value > high) {
                return fmt::format("expected a whole number from {} to {}, found {}", low, high,
                                   io::in_quotes(text));
            }
            text = std::to_string(*value);  // CLI11 would take leading zeros for octal
            return {};
        },
        "", "");
}

CLI::Validator number_above(double low) {
    return number_that(fmt::format("a number above {}", low),
                       [low](double value) { return value > low; });
}

CLI::Validator finite_number() {
    return number_that("a finite number", [](double value) { return std::isfinite(value); });
}

}  // namespace mok::cli
