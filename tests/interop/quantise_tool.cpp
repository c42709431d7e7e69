// The project's FP8 quantisers, for tests/interop/test_quantise.py. Numbers go in on stdin and come
// out on stdout as raw bytes, little endian.
//
//     quantise_tool encode                                F32 in, E4M3 out
//     quantise_tool decode                                E4M3 in, F32 out
//     quantise_tool rows|columns|weights RECIPE ROWS COLS
//         a BF16 matrix in; out: the elements [outer][padded k], then the scales, F32
//         [outer][block] for fp8_block and E8M0 in tiles of 128 x 4 for mxfp8. weights: by rows,
//         then by columns.
//
// Exit status 2 and a sentence on stderr where the input is not as it should be.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/quantise.h"

namespace {

using namespace mok;

template <class T>
std::vector<T> read_all() {
    const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
    if (bytes.size() % sizeof(T) != 0) {
        throw std::runtime_error("stdin: expected a multiple of " + std::to_string(sizeof(T)) +
                                 " bytes, found " + std::to_string(bytes.size()));
    }
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

template <class T>
void write_all(const std::vector<T>& values) {
    if (std::fwrite(values.data(), sizeof(T), values.size(), stdout) != values.size()) {
        throw std::runtime_error("stdout: could not write");
    }
}

template <class Recipe>
void write(const cpu::Quantised<Recipe>& q) {
    write_all(q.elements);
    write_all(q.scales);
}

template <class Recipe>
void quantise(const std::string& what, const cpu::Bf16Matrix& from) {
    if (what == "rows") {
        write(cpu::quantise_rows<Recipe>(from));
    } else if (what == "columns") {
        write(cpu::quantise_columns<Recipe>(from));
    } else {
        const auto both = cpu::quantise_weights<Recipe>(from);
        write(both.by_rows);
        write(both.by_columns);
    }
}

void quantise(const std::vector<std::string>& arguments) {
    const std::string &what = arguments[0], recipe = arguments[1];
    const int64_t rows = std::stoll(arguments[2]), cols = std::stoll(arguments[3]);
    const std::vector<Bf16> values = read_all<Bf16>();
    if (static_cast<int64_t>(values.size()) != rows * cols) {
        throw std::runtime_error("stdin: expected " + std::to_string(rows * cols) +
                                 " BF16 values, found " + std::to_string(values.size()));
    }
    const cpu::Bf16Matrix from{values.data(), rows, cols, cols};
    if (recipe == "fp8_block") {
        quantise<Fp8Block>(what, from);
    } else if (recipe == "mxfp8") {
        quantise<Mxfp8>(what, from);
    } else {
        throw std::runtime_error("recipe: expected fp8_block or mxfp8, found " + recipe);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::string what = arguments.empty() ? "" : arguments[0];
    try {
        if (what == "encode" && argc == 2) {
            std::vector<E4m3> to;
            for (const float v : read_all<float>()) to.push_back(to_e4m3(v));
            write_all(to);
        } else if (what == "decode" && argc == 2) {
            std::vector<float> to;
            for (const E4m3 v : read_all<E4m3>()) to.push_back(to_f32(v));
            write_all(to);
        } else if ((what == "rows" || what == "columns" || what == "weights") && argc == 5) {
            quantise(arguments);
        } else {
            std::fprintf(stderr,
                         "usage: quantise_tool encode|decode, or "
                         "quantise_tool rows|columns|weights RECIPE ROWS COLS\n");
            return 1;
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
    return 0;
}
