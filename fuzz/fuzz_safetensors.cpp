#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "cli/io/safetensors.h"

// Every byte string is either refused by a FileError or is a file whose tensors lie in its data and
// cover it; anything else (another exception, a read outside, a trap) ends the fuzzer.

namespace {

void demand(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "fuzz_safetensors: accepted a file whose %s\n", what);
    std::abort();
}

void check_content(const mok::io::SafetensorsContent& content, std::span<const std::byte> bytes) {
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    std::uint64_t num_covered = 8 + header_bytes;
    for (const mok::io::TensorEntry& tensor : content.tensors) {
        num_covered += tensor.data.size();
        std::uint64_t num_elements = 1;
        for (const std::int64_t dimension : tensor.shape) {
            num_elements *= static_cast<std::uint64_t>(dimension);
        }
        demand(tensor.data.size() == num_elements * mok::io::dtype_bytes(tensor.dtype),
               "tensor has other bytes than its shape");
        if (tensor.data.empty()) continue;
        demand(tensor.data.data() >= bytes.data() + 8 + header_bytes &&
                   tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size(),
               "tensor lies outside");
    }
    demand(num_covered == bytes.size(), "bytes are not covered");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    try {
        check_content(mok::io::parse_safetensors(bytes, "input"), bytes);
    } catch (const mok::io::FileError&) {
    }
    return 0;
}
