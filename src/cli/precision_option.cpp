#include "cli/precision_option.h"

#include <fmt/format.h>

#include <stdexcept>

#include "cli/io/file_error.h"

namespace mok::cli {

void add_precision_option(CLI::App& command, std::string& name) {
    command
        .add_option("--precision", name,
                    "Of the routed experts' products: bf16, fp8_block or mxfp8")
        ->type_name("NAME")
        ->capture_default_str();
}

Precision precision_of(const std::string& name) {
    for (const Precision p : {Precision::BF16, Precision::Fp8Block, Precision::Mxfp8}) {
        if (name == precision_name(p)) return p;
    }
    throw std::invalid_argument(fmt::format(
        "--precision: expected bf16, fp8_block or mxfp8, found {}", io::in_quotes(name)));
}

}  // namespace mok::cli
