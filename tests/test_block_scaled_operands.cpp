// The operands that the MXFP8 backward on Blackwell makes in shared memory: the code of its makers,
// run on the host for all their threads, from rows as the copy engine writes them to what
// tcgen05.mma reads by its descriptors and tcgen05.cp copies of the scales (PTX ISA 9.0), byte by
// byte against the CPU's quantisers.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "arch/umma_descriptor.h"
#include "cpu/quantise.h"
#include "kernels/block_scaled_elements.h"
#include "umma_reader.h"

namespace mok::kernels::block_scaled {
namespace {

using mok_test::byte_of, mok_test::field, mok_test::swizzled;

constexpr uint32_t kFrom = 2048, kElements = 64 * 1024, kScales = 128 * 1024;
constexpr uint32_t kStage = 48 * 1024, kScaleBytes = 3 * 512;
constexpr std::byte kUntouched{0xa5};

// Shared memory. Two accesses of one address by the threads of a stage would be a race where one of
// them writes.
class HostMemory {
  public:
    HostMemory() : bytes_(kScales + 4096, kUntouched), writers_(bytes_.size(), 0) {}

    uint32_t load_word(uint32_t at) const { return read<uint32_t>(at, 4); }
    Chunk load_chunk(uint32_t at) const { return read<Chunk>(at, 16); }
    void store_chunk(uint32_t at, const Chunk& c) const { write(at, c, 16); }
    void store_word(uint32_t at, uint32_t v) const { write(at, v, 4); }
    void store_byte(uint32_t at, uint32_t v) const { write(at, static_cast<uint8_t>(v), 1); }

    uint8_t at(uint32_t i) const { return static_cast<uint8_t>(bytes_.at(i)); }
    void put(uint32_t at, Bf16 value) { std::memcpy(&bytes_.at(at), &value, 2); }
    int writes_of(uint32_t i) const { return writers_.at(i); }

  private:
    template <class T>
    T read(uint32_t at, uint32_t alignment) const {
        EXPECT_EQ(at % alignment, 0u);
        EXPECT_GE(at, kFrom);
        EXPECT_LE(at + sizeof(T), kFrom + kStage);
        T value;
        std::memcpy(&value, &bytes_.at(at), sizeof(T));
        return value;
    }
    template <class T>
    void write(uint32_t at, const T& value, uint32_t alignment) const {
        EXPECT_EQ(at % alignment, 0u);
        const bool is_element = at >= kElements && at + sizeof(T) <= kElements + kStage;
        const bool is_scale = at >= kScales && at + sizeof(T) <= kScales + kScaleBytes;
        EXPECT_TRUE(is_element || is_scale) << at;
        std::memcpy(&bytes_.at(at), &value, sizeof(T));
        for (uint32_t i = 0; i < sizeof(T); ++i) ++writers_.at(at + i);
    }

    mutable std::vector<std::byte> bytes_;
    mutable std::vector<int> writers_;
};

// [rows][cols]: numbers of many sizes, and blocks of zeros, subnormals, infinities and NaNs.
struct Matrix {
    Matrix(int64_t num_rows, int64_t num_cols, bool any_bits, unsigned seed)
        : rows(num_rows), cols(num_cols), values(num_rows * num_cols) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < rows * cols; ++i) {
            const int64_t kind = (i / cols / 32 + i % cols / 32) % 5;
            const float size = std::exp2(static_cast<float>(random() % 17) - 8.0f);
            values[i] = to_bf16(kind == 3 ? 0.0f : size * normal(random));
            if (any_bits && kind == 1) values[i] = {static_cast<uint16_t>(random())};
            if (any_bits && kind == 2) values[i] = {static_cast<uint16_t>(random() & 0x80ff)};
        }
    }
    Bf16 at(int64_t row, int64_t col) const { return values[row * cols + col]; }
    cpu::Bf16Matrix view() const { return {values.data(), rows, cols, cols}; }

    int64_t rows, cols;
    std::vector<Bf16> values;
};

// A box of 64 rows x 64 columns from (row, col) on, as the copy engine writes it.
void put_box(HostMemory& memory, uint32_t to, const Matrix& from, int64_t row, int64_t col) {
    for (int64_t r = 0; r < 64; ++r) {
        for (int64_t c = 0; c < 64; ++c) {
            memory.put(swizzled(to + static_cast<uint32_t>(r * 128 + c * 2)),
                       from.at(row + r, col + c));
        }
    }
}

// The byte that product `step` (32 elements of k each) reads of element (row, k) of an operand.
uint8_t element_read(const HostMemory& memory, uint32_t operand, int64_t row, int64_t k) {
    const uint64_t descriptor =
        arch::umma_operand(operand, arch::Major::K) + k / 32 * arch::kUmmaByteStep;
    // byte_of counts elements of two bytes.
    return memory.at(byte_of(descriptor, arch::Major::K, static_cast<uint32_t>(row),
                             static_cast<uint32_t>(k % 32 / 2)) +
                     static_cast<uint32_t>(k % 2));
}
// And the scale of row `row` that it finds: byte `step` of lane row % 32, column row / 32 of tensor
// memory, which tcgen05.cp of 32 x 128 bits copies from row row % 32, word row / 32 of the tile.
uint8_t scale_read(const HostMemory& memory, uint32_t tile, int64_t row, int64_t step) {
    const uint64_t descriptor = arch::scale_tile_descriptor(tile);
    const auto start = static_cast<uint32_t>(field(descriptor, 0, 14) * 16);
    const auto stride = static_cast<uint32_t>(field(descriptor, 32, 14) * 16);
    const auto lane = static_cast<uint32_t>(row % 32), column = static_cast<uint32_t>(row / 32);
    return memory.at(start + lane % 8 * 16 + lane / 8 * stride + column * 4 +
                     static_cast<uint32_t>(step));
}

// Rows `first` up to first + count of the operand against a quantised matrix's rows from `row` on;
// k of this operand's begins at the matrix's k0 and has `ks` elements.
void expect_operand(const HostMemory& memory, int64_t first, int64_t count,
                    const cpu::Quantised<Mxfp8>& want, int64_t row, int64_t k0, int64_t ks) {
    for (int64_t r = 0; r < count; ++r) {
        const int64_t at = first + r;
        const auto tile = static_cast<uint32_t>(kScales + at / 128 * 512);
        for (int64_t k = 0; k < ks; ++k) {
            ASSERT_EQ(element_read(memory, kElements, at, k), want.element_at(row + r, k0 + k).bits)
                << "row " << r << ", k " << k;
        }
        for (int64_t step = 0; step < ks / 32; ++step) {
            ASSERT_EQ(scale_read(memory, tile, at % 128, step),
                      want.scale_at(row + r, k0 / 32 + step).bits)
                << "row " << r << ", step " << step;
        }
    }
}
// Every byte of [begin, end) was written as often as `times`.
void expect_writes(const HostMemory& memory, uint32_t begin, uint32_t end, int times) {
    for (uint32_t i = begin; i < end; ++i) ASSERT_EQ(memory.writes_of(i), times) << i - begin;
}

// A of a product with weights: 128 columns of 128 rows. B and its scales, which the copy engine
// brings to the same stage, are left alone.
TEST(BlockScaledOperands, RowsAreTheCpusBytes) {
    for (const bool any_bits : {false, true}) {
        const Matrix x(128, 384, any_bits, 7);
        const auto want = cpu::quantise_rows<Mxfp8>(x.view());
        for (int64_t k0 = 0; k0 < 384; k0 += 128) {
            HostMemory memory;
            for (int64_t half = 0; half < 2; ++half) {
                for (int64_t i = 0; i < 2; ++i) {
                    put_box(memory, static_cast<uint32_t>(kFrom + (2 * half + i) * kBoxBytes), x,
                            64 * i, k0 + 64 * half);
                }
            }
            for (int thread = 0; thread < kMakers; ++thread) {
                make_row(memory, thread, kFrom, kElements, kScales);
            }
            expect_operand(memory, 0, 128, want, 0, k0, 128);
            expect_writes(memory, kElements, kElements + 16384, 1);
            expect_writes(memory, kElements + 16384, kElements + kStage, 0);
            expect_writes(memory, kScales, kScales + 512, 1);
            expect_writes(memory, kScales + 512, kScales + kScaleBytes, 0);
        }
    }
}

// Both operands of a weight gradient, of two stages of 64 slots, and of one where the slots end.
TEST(BlockScaledOperands, ColumnsAreTheCpusBytes) {
    for (const bool any_bits : {false, true}) {
        const Matrix a(192, 128, any_bits, 11), b(192, 256, any_bits, 13);
        const auto want_a = cpu::quantise_columns<Mxfp8>(a.view());
        const auto want_b = cpu::quantise_columns<Mxfp8>(b.view());
        for (int64_t slot = 0; slot < 192; slot += 128) {
            HostMemory memory;
            const int64_t stages = std::min<int64_t>(2, (192 - slot) / 64);
            for (int64_t stage = 0; stage < stages; ++stage) {
                for (int64_t i = 0; i < 6; ++i) {
                    const Matrix& from = i < 2 ? a : b;
                    put_box(memory, static_cast<uint32_t>(kFrom + i * kBoxBytes), from,
                            slot + 64 * stage, 64 * (i < 2 ? i : i - 2));
                }
                for (int thread = 0; thread < kMakers; ++thread) {
                    make_columns(memory, thread, static_cast<int>(2 * stage), kFrom, kElements,
                                 kScales);
                }
            }
            expect_operand(memory, 0, 128, want_a, 0, slot, 64 * stages);
            expect_operand(memory, 128, 256, want_b, 0, slot, 64 * stages);
            if (stages == 2) {
                expect_writes(memory, kElements, kElements + kStage, 1);
                expect_writes(memory, kScales, kScales + kScaleBytes, 1);
            }
        }
    }
}

// Eight lanes that store 16 bytes each at once use all banks: their chunks differ modulo 128 bytes.
class ChunkRecorder {
  public:
    explicit ChunkRecorder(std::vector<uint32_t>& stored) : stored_(stored) {}
    uint32_t load_word(uint32_t) const { return 0; }
    Chunk load_chunk(uint32_t) const { return {}; }
    void store_chunk(uint32_t at, const Chunk&) const { stored_.push_back(at); }
    void store_word(uint32_t, uint32_t) const {}
    void store_byte(uint32_t, uint32_t) const {}

  private:
    std::vector<uint32_t>& stored_;
};
TEST(BlockScaledOperands, StoresUseAllBanks) {
    for (const bool columns : {false, true}) {
        for (int first = 0; first < kMakers; first += 8) {
            std::vector<std::vector<uint32_t>> stored(8);
            for (int i = 0; i < 8; ++i) {
                const ChunkRecorder memory(stored[i]);
                if (columns) {
                    make_columns(memory, first + i, 0, 0, 0, 0);
                } else {
                    make_row(memory, first + i, 0, 0, 0);
                }
            }
            for (size_t store = 0; store < stored[0].size(); ++store) {
                uint32_t banks = 0;
                for (const auto& lane : stored) banks |= 1u << lane.at(store) / 16 % 8;
                ASSERT_EQ(banks, 0xffu);
            }
        }
    }
}

// ---- Descriptors and columns --------------------------------------------------------------------
// Of one CTA: M is 128.
TEST(BlockScaledOperands, InstructionFields) {
    for (int byte = 0; byte < 4; ++byte) {
        EXPECT_EQ(arch::umma_mxfp8_instruction(128, 256, byte),
                  mok_test::mxfp8_instruction(128, 256, byte));
    }
}

// Sums and the scales of both stages lie in tensor memory and apart, at columns that tcgen05.mma
// takes scales from: multiples of 4.
TEST(BlockScaledOperands, ColumnsOfTensorMemory) {
    std::vector<int> users(arch::kTensorColumns, 0);
    for (uint32_t c = 0; c < 256; ++c) ++users[c];
    for (uint32_t stage = 0; stage < kOperandStages; ++stage) {
        for (uint32_t tile = 0; tile < 3; ++tile) {
            const uint32_t at =
                kOperandScalesAt + stage * kOperandScaleColumns + tile * arch::kScaleTileColumns;
            EXPECT_EQ(at % 4, 0u);
            for (uint32_t c = 0; c < 4; ++c) ++users.at(at + c);
        }
    }
    for (const int n : users) EXPECT_LE(n, 1);
}

// What loader, makers and consumers count of a task's stages: all k once.
TEST(BlockScaledOperands, BlocksCoverK) {
    using enum plan::TaskKind;
    for (int32_t k = 1; k < 4000; k += 61) {
        const int32_t bf16 = (k + 63) / 64, of_128 = (k + 127) / 128;
        for (const plan::TaskKind kind : {Replay, DownDgrad}) {
            EXPECT_EQ(operand_blocks(kind, bf16), of_128);
            EXPECT_EQ(row_blocks(kind, bf16), of_128);
        }
        // d_gate's columns, then d_up's: each fills its last block up by itself.
        EXPECT_EQ(operand_blocks(GateUpDgrad, 2 * bf16), 2 * of_128);
        EXPECT_EQ(row_blocks(GateUpDgrad, 2 * bf16), 2 * of_128);
        for (const plan::TaskKind kind : {GateWgrad, UpWgrad, DownWgrad}) {
            EXPECT_EQ(operand_blocks(kind, bf16), of_128);
            EXPECT_EQ(row_blocks(kind, bf16), bf16);
        }
    }
}

}  // namespace
}  // namespace mok::kernels::block_scaled
