#pragma once

#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace mok {

inline std::string file_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot be read: " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

struct ProgramResult {
    int status = -1;
    std::string out, err;
};

// Runs `mok ARGUMENTS` (shell words) to its end; `folder` holds what it prints.
inline ProgramResult run_program(const std::filesystem::path& folder,
                                 const std::string& arguments) {
    const std::string out = (folder / "stdout").string(), err = (folder / "stderr").string();
    const std::string line =
        std::string(MOK_PROGRAM) + " " + arguments + " >'" + out + "' 2>'" + err + "' </dev/null";
    const int ended = std::system(line.c_str());
    ProgramResult result;
    result.status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
    result.out = file_text(out);
    result.err = file_text(err);
    return result;
}

}  // namespace mok
