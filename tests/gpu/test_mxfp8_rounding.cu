#include <cstdio>
#include <vector>

#include "device_case.h"
#include "kernels/mxfp8_rounding.cuh"
#include "kernels/mxfp8_unpack.cuh"

// What the MXFP8 passes do with BF16 in shared memory and with elements and scales, on a GPU,
// against quantising and dequantising on the host. A stand-alone program: prints what failed and
// ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;

constexpr int kSide = 64;
enum class Way { Rows, Columns, TwoBlocks };

// Blocks of 64 x 64, each by a consumer's threads, in the order of their rows.
template <Way kWay>
__global__ void round_blocks(const Bf16* from, Bf16* to) {
    constexpr int kBlocks = kWay == Way::TwoBlocks ? 2 : 1;
    __shared__ alignas(1024) uint8_t block[kBlocks * kSide * 128];
    const int64_t first = int64_t{blockIdx.x} * kBlocks * kSide * kSide;
    const auto place = [](int i) {
        const int row = i / kSide, col = i % kSide;
        return row / kSide * kSide * 128 + kernels::chunk_offset(row % kSide, col / 8) +
               col % 8 * 2;
    };
    for (int i = threadIdx.x; i < kBlocks * kSide * kSide; i += 128) {
        *reinterpret_cast<Bf16*>(block + place(i)) = from[first + i];
    }
    __syncthreads();
    const uint32_t at = arch::shared_address(block);
    if constexpr (kWay == Way::Rows) {
        kernels::round_rows(at);
    } else if constexpr (kWay == Way::Columns) {
        kernels::round_block_of_columns(at);
    } else {
        kernels::round_two_blocks_of_columns(at);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kBlocks * kSide * kSide; i += 128) {
        to[first + i] = *reinterpret_cast<const Bf16*>(block + place(i));
    }
}

// [scale][element pair]: the element twice.
__global__ void unpack_all(uint32_t* pairs) {
    const uint32_t element = threadIdx.x, word = element * 0x01010101u;
    const uint32_t scale = kernels::scale_pair({static_cast<uint8_t>(blockIdx.x)});
    const uint32_t low = kernels::unpack_pair(kernels::low_elements(word), scale);
    const uint32_t high = kernels::unpack_pair(kernels::high_elements(word), scale);
    pairs[blockIdx.x * 256 + element] = low == high ? low : 0xdeadbeefu;
}

bool same_value(Bf16 a, Bf16 b) {
    const auto is_nan = [](Bf16 v) { return (v.bits & 0x7fffu) > 0x7f80u; };
    if (is_nan(a) || is_nan(b)) return is_nan(a) && is_nan(b);
    return a.bits == b.bits || ((a.bits | b.bits) & 0x7fffu) == 0;  // zeros of either sign
}

// Blocks of 32 along rows or down columns, whose sizes range over all that BF16 has; with
// any_bits also infinities, NaNs and subnormals.
std::vector<Bf16> values(int64_t count, bool along_rows, bool any_bits) {
    std::vector<Bf16> v(count);
    uint32_t random = 1;
    for (int64_t i = 0; i < count; ++i) {
        random = random * 1664525u + 1013904223u;
        const uint32_t bits = random >> 8;
        const int64_t row = i / kSide, col = i % kSide;
        const int64_t block = along_rows ? 2 * row + col / 32 : row / 32 * kSide + col;
        const uint32_t top = static_cast<uint32_t>(block * 7 % 250);
        const uint32_t below = (bits >> 16) % 14;
        const uint32_t spread = (bits & 0x807fu) | (top > below ? top - below : 0) << 7;
        v[i].bits = static_cast<uint16_t>(any_bits ? bits : spread);
        if (bits % 97 == 0) v[i].bits = 0;
    }
    return v;
}

std::vector<Bf16> rounded(const std::vector<Bf16>& from, bool along_rows) {
    std::vector<Bf16> to(from.size());
    const int64_t rows = static_cast<int64_t>(from.size()) / kSide;
    const int64_t step = along_rows ? 1 : kSide;
    for (int64_t row = 0; row < rows; row += along_rows ? 1 : 32) {
        for (int64_t col = 0; col < kSide; col += along_rows ? 32 : 1) {
            const int64_t first = row * kSide + col;
            const Ue8m0 scale =
                Mxfp8::scale_of(max_with(Amax{}, BlockSource{&from[first], step, 32}));
            for (int i = 0; i < 32; ++i) {
                to[first + i * step] = mxfp8_exactly(from[first + i * step], scale);
            }
        }
    }
    return to;
}

template <Way kWay>
int check(const char* name, bool any_bits) {
    constexpr int kCtas = 256, kBlocks = kWay == Way::TwoBlocks ? 2 : 1;
    constexpr bool kAlongRows = kWay == Way::Rows;
    const std::vector<Bf16> from =
        values(int64_t{kCtas} * kBlocks * kSide * kSide, kAlongRows, any_bits);
    const std::vector<Bf16> want = rounded(from, kAlongRows);
    const DeviceMemory source(from), target(static_cast<int64_t>(from.size() * sizeof(Bf16)));
    round_blocks<kWay><<<kCtas, 128>>>(source.at<Bf16>(), target.at<Bf16>());
    MOK_CUDA(cudaGetLastError());
    std::vector<Bf16> found(from.size());
    MOK_CUDA(cudaMemcpy(found.data(), target.at<void>(), found.size() * sizeof(Bf16),
                        cudaMemcpyDeviceToHost));
    int64_t wrong = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        if (same_value(found[i], want[i])) continue;
        if (wrong++ < 5) {
            std::printf("FAIL %s: element %zu, %04x: expected %04x, found %04x\n", name, i,
                        from[i].bits, want[i].bits, found[i].bits);
        }
    }
    std::printf("%s%s: %ld of %zu wrong\n", name, any_bits ? ", any bits" : "", long(wrong),
                want.size());
    return wrong != 0;
}

int check_unpacking() {
    const DeviceMemory pairs(65536 * 4);
    unpack_all<<<256, 256>>>(pairs.at<uint32_t>());
    MOK_CUDA(cudaGetLastError());
    std::vector<uint32_t> found(65536);
    MOK_CUDA(cudaMemcpy(found.data(), pairs.at<void>(), 65536 * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (uint32_t i = 0; i < 65536; ++i) {
        const E4m3 element{static_cast<uint8_t>(i)};
        const Ue8m0 scale{static_cast<uint8_t>(i >> 8)};
        if ((element.bits & 0x7f) == kE4m3NaN && scale.bits != kUe8m0NaN) continue;
        const Bf16 want = dequantise(element, scale);
        const Bf16 low{static_cast<uint16_t>(found[i])},
            high{static_cast<uint16_t>(found[i] >> 16)};
        if (same_value(low, want) && same_value(high, want)) continue;
        if (wrong++ < 5) {
            std::printf("FAIL element %02x, scale %02x: expected %04x, found %08x\n", element.bits,
                        scale.bits, want.bits, found[i]);
        }
    }
    std::printf("unpacking: %d of 65536 wrong\n", wrong);
    return wrong != 0;
}

}  // namespace

int main() {
    int failed = check_unpacking();
    for (const bool any_bits : {false, true}) {
        failed += check<Way::Rows>("rows", any_bits);
        failed += check<Way::Columns>("columns", any_bits);
        failed += check<Way::TwoBlocks>("columns of two blocks", any_bits);
    }
    std::printf("test_mxfp8_rounding: %d failed\n", failed);
    return failed != 0;
}
