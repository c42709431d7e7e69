#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/bench_command.h"
#include "cli/check_command.h"
#include "cli/doctor_command.h"
#include "cli/exit_status.h"
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

int refuse(std::string_view sentence, ExitStatus status) {
    std::string line = "mok: ";
    for (const char c : sentence) line += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    line += '\n';
    std::fputs(line.c_str(), stderr);  // where nobody can read it, the status says it alone
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
    add_train_command(app);
    try {
        app.parse(argc, argv);
        return finish_output();
    } catch (const CLI::Success& e) {  // --help, --version
        app.exit(e);
        return finish_output();
    } catch (const CLI::RuntimeError& e) {  // of ranks in processes, which have said why
        return e.get_exit_code();
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
    } catch (const std::system_error& e) {
        if (e.code() != std::errc::resource_unavailable_try_again) return refuse(e.what(), kFailed);
        return refuse(
            "the system has no thread left for this call: fewer ranks or workers need less",
            kFailed);
    } catch (const std::exception& e) {
        return refuse(e.what(), kFailed);
    }
}

// A file that is opened while a standard stream is closed would get the stream's number, and what
// is printed would get into the file. Opened the wrong way round, the stream stays unusable.
void reserve_standard_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(stream, F_GETFD) >= 0) continue;
        if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream)
            _exit(kFailed);
    }
}

}  // namespace
}  // namespace mok::cli

int main(int argc, char** argv) {
    // A file beyond the limit of its size is then an error of write(), like a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    mok::cli::reserve_standard_streams();
    return mok::cli::run_program(argc, argv);
}
