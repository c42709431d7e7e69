#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/train_command.h"

// The program `mok`: one subcommand a job. Errors are one sentence on stderr and exit status 2.
int main(int argc, char** argv) {
    CLI::App app("A mixture-of-experts layer for training", "mok");
    app.require_subcommand(1);
    int status = 0;
    mok::cli::add_train_command(app, status);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);
        std::cerr << "mok: " << error.what() << "\n";
        return 2;
    }
    return status;
}
