// The project's safetensors reader and writer, for tests/interop/test_safetensors.py.
//
//     safetensors_tool dump FILE     prints one line per tensor and metadata pair
//     safetensors_tool write FILE    writes the file that such lines on stdin describe
//
// Lines, tab-separated: "tensor NAME DTYPE DIM,DIM,... HEX" and "metadata KEY VALUE".
// Exit status 2 and the sentence on stderr where a file is refused.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "cli/io/safetensors.h"

namespace {

using mok::io::TensorEntry;

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (const char character : text) {
        if (character == separator) {
            parts.emplace_back();
        } else {
            parts.back() += character;
        }
    }
    return parts;
}

std::string to_hex(std::span<const std::byte> bytes) {
    std::string hex;
    for (const std::byte byte : bytes) hex += fmt::format("{:02x}", std::to_integer<int>(byte));
    return hex;
}

std::vector<std::byte> from_hex(const std::string& hex) {
    std::vector<std::byte> bytes;
    for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
        bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(at, 2), nullptr, 16)));
    }
    return bytes;
}

void dump(const std::string& path) {
    const mok::io::SafetensorsFile file(path);
    for (const auto& [key, value] : file.metadata()) fmt::print("metadata\t{}\t{}\n", key, value);
    for (const TensorEntry& tensor : file.tensors()) {
        fmt::print("tensor\t{}\t{}\t{}\t{}\n", tensor.name, dtype_name(tensor.dtype),
                   fmt::join(tensor.shape, ","), to_hex(tensor.data));
    }
}

void write(const std::string& path) {
    std::vector<TensorEntry> tensors;
    std::vector<std::vector<std::byte>> data;
    mok::io::Metadata metadata;
    std::string line;
    while (std::getline(std::cin, line)) {
        const std::vector<std::string> fields = split(line, '\t');
        if (fields.at(0) == "metadata") {
            metadata[fields.at(1)] = fields.at(2);
            continue;
        }
        TensorEntry tensor{fields.at(1), mok::io::dtype_from_name(fields.at(2)).value(), {}, {}};
        if (!fields.at(3).empty()) {
            for (const std::string& dim : split(fields[3], ',')) {
                tensor.shape.push_back(std::stoll(dim));
            }
        }
        data.push_back(from_hex(fields.at(4)));
        tensor.data = data.back();
        tensors.push_back(tensor);
    }
    mok::io::write_safetensors(path, tensors, metadata);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string command = argc == 3 ? argv[1] : "";
    try {
        if (command == "dump") {
            dump(argv[2]);
        } else if (command == "write") {
            write(argv[2]);
        } else {
            std::fprintf(stderr, "usage: safetensors_tool dump|write FILE\n");
            return 1;
        }
    } catch (const mok::io::FileError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    }
    return 0;
}
