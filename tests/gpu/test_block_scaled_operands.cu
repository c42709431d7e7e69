#include <cstdio>
#include <random>
#include <vector>

#include "cpu/quantise.h"
#include "device_case.h"
#include "kernels/block_scaled_words.cuh"

// The operands that the makers of the MXFP8 backward on Blackwell make in shared memory, on any
// GPU: elements and scales against the CPU's quantisers. A stand-alone program: prints what failed
// and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
namespace block_scaled = kernels::block_scaled;

constexpr int kStageBytes = 6 * block_scaled::kBoxBytes, kScaleBytes = 3 * 512;
constexpr int kBytes = 2 * kStageBytes + kScaleBytes;

// `from`: the boxes of a stage in the order of their rows, [boxes][64][64]; of a weight gradient
// two stages. `to`: what lies in the operand's stage, then its scales.
template <bool kColumns>
__global__ void make_operand(const Bf16* from, uint8_t* to) {
    extern __shared__ uint8_t raw[];
    uint8_t* const stage = raw + (-arch::shared_address(raw) & 1023u);
    uint8_t* const made = stage + kStageBytes;
    constexpr int kBoxes = kColumns ? 6 : 4;
    for (int i = threadIdx.x; i < kStageBytes + kScaleBytes; i += block_scaled::kMakers) {
        made[i] = 0xa5;
    }
    for (int k = 0; k < (kColumns ? 2 : 1); ++k) {
        __syncthreads();
        for (int i = threadIdx.x; i < kBoxes * 4096; i += block_scaled::kMakers) {
            const int row = i / 64, col = i % 64;
            *reinterpret_cast<Bf16*>(stage + kernels::chunk_offset(row, col / 8) + col % 8 * 2) =
                from[k * kBoxes * 4096 + i];
        }
        __syncthreads();
        const uint32_t at = arch::shared_address(stage), elements = at + kStageBytes;
        const block_scaled::SharedWords memory;
        const int thread = static_cast<int>(threadIdx.x);
        if constexpr (kColumns) {
            block_scaled::make_columns(memory, thread, 2 * k, at, elements, elements + kStageBytes);
        } else {
            block_scaled::make_row(memory, thread, at, elements, elements + kStageBytes);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kStageBytes + kScaleBytes; i += block_scaled::kMakers) {
        to[i] = made[i];
    }
}

// [rows][cols] of any bits, or of numbers whose sizes differ from block to block.
std::vector<Bf16> values(int64_t rows, int64_t cols, bool any_bits, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Bf16> v(rows * cols);
    for (int64_t i = 0; i < rows * cols; ++i) {
        const uint32_t bits = random();
        const uint32_t top = static_cast<uint32_t>((i / cols / 32 * 37 + i % cols / 32 * 11) % 240);
        v[i].bits =
            static_cast<uint16_t>(any_bits ? bits : (bits & 0x807fu) | (top + bits % 14) << 7);
        if (bits % 97 == 0) v[i].bits = 0;
    }
    return v;
}

struct Made {
    std::vector<uint8_t> bytes;
    uint8_t element(int64_t row, int64_t k) const {
        return bytes[row * 128 + ((k / 16 ^ (row & 7)) * 16) + k % 16];
    }
    uint8_t scale(int64_t row, int64_t block) const {
        return bytes[kStageBytes + row / 128 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block];
    }
};
template <bool kColumns>
Made made_of(const std::vector<Bf16>& boxes) {
    Made made{std::vector<uint8_t>(kStageBytes + kScaleBytes)};
    const DeviceMemory from(boxes), to(static_cast<int64_t>(made.bytes.size()));
    MOK_CUDA(cudaFuncSetAttribute(make_operand<kColumns>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes + 1024));
    make_operand<kColumns>
        <<<1, block_scaled::kMakers, kBytes + 1024>>>(from.at<Bf16>(), to.at<uint8_t>());
    MOK_CUDA(cudaGetLastError());
    MOK_CUDA(
        cudaMemcpy(made.bytes.data(), to.at<void>(), made.bytes.size(), cudaMemcpyDeviceToHost));
    return made;
}

// The operand's rows from `first` on against a quantised matrix of 128 elements of k.
int64_t wrong_bytes(const Made& made, int64_t first, const cpu::Quantised<Mxfp8>& want) {
    int64_t wrong = 0;
    for (int64_t row = 0; row < want.outer; ++row) {
        for (int64_t k = 0; k < 128; ++k) {
            wrong += made.element(first + row, k) != want.element_at(row, k).bits;
        }
        for (int64_t block = 0; block < 4; ++block) {
            wrong += made.scale(first + row, block) != want.scale_at(row, block).bits;
        }
    }
    return wrong;
}

// A box of 64 x 64 from (row, col) on, behind those that there are.
void append_box(std::vector<Bf16>& boxes, const std::vector<Bf16>& from, int64_t cols, int64_t row,
                int64_t col) {
    for (int64_t r = 0; r < 64; ++r) {
        const auto begin = from.begin() + (row + r) * cols + col;
        boxes.insert(boxes.end(), begin, begin + 64);
    }
}

int64_t check_rows() {
    int64_t wrong = 0;
    for (unsigned seed = 0; seed < 50; ++seed) {
        const std::vector<Bf16> x = values(128, 128, seed % 2 == 1, seed);
        std::vector<Bf16> boxes;
        for (int64_t i = 0; i < 4; ++i) append_box(boxes, x, 128, i % 2 * 64, i / 2 * 64);
        wrong += wrong_bytes(made_of<false>(boxes), 0,
                             cpu::quantise_rows<Mxfp8>({x.data(), 128, 128, 128}));
    }
    std::printf("along rows: %ld bytes of 50 operands are wrong\n", long(wrong));
    return wrong;
}

int64_t check_columns() {
    int64_t wrong = 0;
    for (unsigned seed = 0; seed < 50; ++seed) {
        const std::vector<Bf16> a = values(128, 128, seed % 2 == 1, 2 * seed);
        const std::vector<Bf16> b = values(128, 256, seed % 2 == 1, 2 * seed + 1);
        std::vector<Bf16> boxes;
        for (int64_t slot = 0; slot < 128; slot += 64) {
            for (int64_t i = 0; i < 2; ++i) append_box(boxes, a, 128, slot, 64 * i);
            for (int64_t i = 0; i < 4; ++i) append_box(boxes, b, 256, slot, 64 * i);
        }
        const Made made = made_of<true>(boxes);
        wrong += wrong_bytes(made, 0, cpu::quantise_columns<Mxfp8>({a.data(), 128, 128, 128}));
        wrong += wrong_bytes(made, 128, cpu::quantise_columns<Mxfp8>({b.data(), 128, 256, 256}));
    }
    std::printf("along slots: %ld bytes of 50 pairs of operands are wrong\n", long(wrong));
    return wrong;
}

}  // namespace

int main() {
    const bool failed = (check_rows() != 0) + (check_columns() != 0) > 0;
    std::printf("test_block_scaled_operands: %s\n", failed ? "failed" : "0 failures");
    return failed;
}
