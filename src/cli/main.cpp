#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/bench_command.h"
#include "cli/check_command.h"
#include "cli/doctor_command.h"
#include "cli/io/file_error.h"
#include "cli/plan_command.h"
#include "cli/run_command.h"
#include "cli/train_command.h"
#include "cli/version_text.h"
#include "openmok/error.h"

// The program `mok`. A command that cannot do its work throws; here every exception becomes one
// sentence on stderr and the exit status.
namespace mok::cli {
namespace {

enum ExitStatus { kDone = 0, kFailed = 1, kBadInput = 2, kTimeout = 3 };

int refuse(std::string_view sentence, ExitStatus status) {
    std::string line;
    for (const char c : sentence) line += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    fmt::print(stderr, "mok: {}\n", line);
    return status;
}

// What was printed must have arrived, e.g. not so on a full disk.
int finish_output() {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return kDone;
    return refuse("standard output: cannot be written", kFailed);
}

// CLI11 asks for a command before it looks at a word that is none.
std::string parse_error_sentence(const CLI::App& app, const CLI::ParseError& error) {
    const std::vector<std::string> words = app.remaining();
    if (!app.get_subcommands().empty() || words.empty()) {
        return fmt::format("{} (see mok --help)", error.what());
    }
    return fmt::format("expected a command, found {} (see mok --help)", io::in_quotes(words[0]));
}

int run_program(int argc, char** argv) {
    CLI::App app("A mixture-of-experts layer for training, over many ranks.", "mok");
    app.set_version_flag("--version", version_text);
    app.require_subcommand(1);
    app.failure_message([](const CLI::App*, const CLI::Error& e) { return std::string(e.what()); });
    add_run_command(app);
    add_check_command(app);
    add_plan_command(app);
    add_bench_command(app);
    add_doctor_command(app);
    int train_status = kDone;
    add_train_command(app, train_status);
    try {
        app.parse(argc, argv);
        const int output_status = finish_output();
        return train_status != kDone ? train_status : output_status;
    } catch (const CLI::Success& e) {  // --help, --version
        app.exit(e);
        return finish_output();
    } catch (const CLI::ParseError& e) {
        return refuse(parse_error_sentence(app, e), kBadInput);
    } catch (const ShapeError& e) {
        return refuse(e.what(), kBadInput);
    } catch (const io::FileError& e) {
        return refuse(e.what(), kBadInput);
    } catch (const std::invalid_argument& e) {
        return refuse(e.what(), kBadInput);
    } catch (const TimeoutError& e) {
        return refuse(e.what(), kTimeout);
    } catch (const std::bad_alloc&) {
        return refuse("the machine has not enough memory for this call", kFailed);
    } catch (const std::exception& e) {
        return refuse(e.what(), kFailed);
    }
}

}  // namespace
}  // namespace mok::cli

int main(int argc, char** argv) {
    // A file beyond the limit of its size is then an error of write(), like a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    return mok::cli::run_program(argc, argv);
}
