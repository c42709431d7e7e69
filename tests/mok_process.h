#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "temporary_folder.h"

// Runs the built program `mok` as a user does.
namespace mok {

struct ProcessResult {
    int status = -1;  // exit status; 128 + n where signal n ended it
    std::string out, err;
};

inline std::string read_bytes(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary);
    file << bytes;
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::string shell_quoted(const std::string& text) {
    std::string quoted(1, '\'');
    for (const char c : text) {
        if (c == '\'') quoted += "'\\'";
        quoted += c;
        if (c == '\'') quoted += '\'';
    }
    quoted += '\'';
    return quoted;
}

// `arguments` are shell words. `before` is shell text in front of the program, e.g.
// "MOK_TIMEOUT_S=abc" or "ulimit -f 1; exec".
inline ProcessResult run_mok_line(const std::string& arguments, const std::string& before = "") {
    const TemporaryFolder folder;
    const auto out = folder.path() / "out", err = folder.path() / "err";
    const std::string command = "{ unset MOK_TIMEOUT_S; " + before + ' ' +
                                shell_quoted(MOK_PROGRAM) + ' ' + arguments + "; } >" +
                                out.string() + " 2>" + err.string() + " </dev/null";
    const int status = std::system(command.c_str());
    ProcessResult result;
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read_bytes(out);
    result.err = read_bytes(err);
    return result;
}

inline ProcessResult run_mok(const std::vector<std::string>& arguments,
                             const std::string& before = "") {
    std::string words;
    for (const std::string& argument : arguments) words += ' ' + shell_quoted(argument);
    return run_mok_line(words, before);
}

}  // namespace mok
