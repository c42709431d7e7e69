#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "arch/umma_descriptor.h"
#include "kernels/block_scaled_tiles.h"
#include "kernels/pair_halves.h"
#include "kernels/tensor_rows.h"
#include "math/scale_tiles.h"
#include "umma_reader.h"

// The descriptors of tcgen05.mma, bit by bit against the tables of PTX ISA 9.0 ("Shared memory
// descriptor", "Instruction descriptor" of kind::f16), and what they describe against where the
// copy engine puts elements.
namespace mok::arch {
namespace {

using mok_test::assembled, mok_test::byte_of, mok_test::field, mok_test::swizzled;

TEST(UmmaDescriptor, SharedMemoryFields) {
    for (const uint32_t address : {0u, 1024u, 16384u, 49152u, 227u * 1024 - 1024}) {
        // Address, leading offset, stride, constant, base offset, relative leading offset, swizzle.
        EXPECT_EQ(umma_operand(address, Major::K), assembled({{0, 14, address / 16},
                                                              {16, 14, 1},
                                                              {32, 14, 1024 / 16},
                                                              {46, 3, 1},
                                                              {49, 3, 0},
                                                              {52, 1, 0},
                                                              {61, 3, 2}}));
        EXPECT_EQ(umma_operand(address, Major::Outer), assembled({{0, 14, address / 16},
                                                                  {16, 14, 8192 / 16},
                                                                  {32, 14, 1024 / 16},
                                                                  {46, 3, 1},
                                                                  {49, 3, 0},
                                                                  {52, 1, 0},
                                                                  {61, 3, 2}}));
    }
}

TEST(UmmaDescriptor, InstructionFields) {
    for (const Major a : {Major::K, Major::Outer}) {
        for (const Major b : {Major::K, Major::Outer}) {
            // Sparsity selector, sparse, saturate, D (1: FP32), A and B (1: BF16), negate A, B,
            // transpose A, B, N / 8, M / 16, maximum shift.
            EXPECT_EQ(umma_instruction(128, 256, a, b), assembled({{0, 2, 0},
                                                                   {2, 1, 0},
                                                                   {3, 1, 0},
                                                                   {4, 2, 1},
                                                                   {7, 3, 1},
                                                                   {10, 3, 1},
                                                                   {13, 1, 0},
                                                                   {14, 1, 0},
                                                                   {15, 1, a == Major::Outer},
                                                                   {16, 1, b == Major::Outer},
                                                                   {17, 6, 256 / 8},
                                                                   {24, 5, 128 / 16},
                                                                   {30, 2, 0}}));
        }
    }
    EXPECT_EQ(umma_instruction(128, 256, Major::K, Major::K), 0x08400490u);
    // Of a pair of CTAs; of its backward B, or both operands, lie K-outermost.
    EXPECT_EQ(umma_instruction(256, 256, Major::K, Major::K), 0x10400490u);
    EXPECT_EQ(umma_instruction(256, 256, Major::K, Major::Outer), 0x10410490u);
    EXPECT_EQ(umma_instruction(256, 256, Major::Outer, Major::Outer), 0x10418490u);
}

// Boxes of 64 rows of 128 bytes, as the loaders put them one behind another, against the
// descriptors of the four steps of a k block.
TEST(UmmaDescriptor, ReadsWhatTheCopyEngineWrote) {
    constexpr uint32_t kBase = 3 * 49152, kBox = 64 * 128;
    for (const Major major : {Major::K, Major::Outer}) {
        for (const uint32_t rows : {128u, 256u}) {
            for (uint32_t row = 0; row < rows; ++row) {
                for (uint32_t k = 0; k < 64; ++k) {
                    // K: boxes follow along the rows. Outer: a box has 64 rows of k and 64 of the
                    // operand's rows side by side, boxes follow along the operand's rows.
                    const uint32_t in_box =
                        major == Major::K ? row % 64 * 128 + k * 2 : k * 128 + row % 64 * 2;
                    const uint32_t written = swizzled(kBase + row / 64 * kBox + in_box);
                    const uint64_t step =
                        umma_operand(kBase, major) + k / 16 * umma_operand_step(major);
                    ASSERT_EQ(byte_of(step, major, row, k % 16), written)
                        << "row " << row << " k " << k << " major " << static_cast<int>(major);
                }
            }
        }
    }
}

// The halves of a pair: rows 0..127 of B are the first CTA's (PTX ISA, "Data path layout
// organization" of cta_group::2). Together they are the task's 256 rows in the order that one CTA
// alone has them: a tile of GateUp is 128 columns of gate and 128 of up, of Down 256 of down.
TEST(CtaPair, HalvesAreTheTasksWeights) {
    using kernels::PairHalf, kernels::PairWeights;
    for (int part = 0; part < 5; ++part) {
        for (int column = 0; column < 256; ++column) {
            const PairHalf gate_up = kernels::pair_half(true, part, column / 128);
            EXPECT_EQ(gate_up.matrix, column < 128 ? PairWeights::Gate : PairWeights::Up);
            EXPECT_EQ(gate_up.row + column % 128, 128 * part + column % 128);
            const PairHalf down = kernels::pair_half(false, part, column / 128);
            EXPECT_EQ(down.matrix, PairWeights::Down);
            EXPECT_EQ(down.row + column % 128, 256 * part + column);
        }
    }
}

// ---- Block scales -------------------------------------------------------------------------------
TEST(BlockScales, InstructionFields) {
    for (int byte = 0; byte < 4; ++byte) {
        EXPECT_EQ(umma_mxfp8_instruction(256, 256, byte),
                  mok_test::mxfp8_instruction(256, 256, byte));
    }
    EXPECT_EQ(umma_mxfp8_instruction(256, 256, 0), 0x10c00000u);
    EXPECT_EQ(umma_mxfp8_instruction(256, 256, 3), 0x70c00030u);
}

// 128 bytes of a row are 128 elements of one byte: a product of 32 is 32 bytes further on.
TEST(BlockScales, ElementsOfAByteStepBy32) {
    for (uint32_t row = 0; row < 128; ++row) {
        for (uint32_t k = 0; k < 128; ++k) {
            const uint64_t step = umma_operand(4096, Major::K) + k / 32 * kUmmaByteStep;
            // byte_of counts elements of two bytes.
            ASSERT_EQ(byte_of(step, Major::K, row, k % 32 / 2) + k % 2,
                      swizzled(4096 + row * 128 + k));
        }
    }
}

// tcgen05.cp of 32 x 128 bits: row r of the source is a core matrix's, 16 bytes, 8 rows of 128
// bytes in all, the next 8 the descriptor's stride on; no swizzle. It becomes lane r of four
// columns of 32 bits. Products find the scale of row n of their operand in lane n % 32 of column n
// / 32, in the byte that the instruction names (PTX ISA, "Scale factor A layout", "Scale factor B
// layout" of scale_vec::1X).
TEST(BlockScales, TilesReachTheProductsByteByByte) {
    constexpr uint32_t kTile = 5 * 512;
    const uint64_t descriptor = scale_tile_descriptor(kTile);
    EXPECT_EQ(descriptor, assembled({{0, 14, kTile / 16},
                                     {16, 14, 0},
                                     {32, 14, 128 / 16},
                                     {46, 3, 1},
                                     {49, 3, 0},
                                     {52, 1, 0},
                                     {61, 3, 0}}));
    const uint32_t start = static_cast<uint32_t>(field(descriptor, 0, 14) * 16);
    const uint32_t stride = static_cast<uint32_t>(field(descriptor, 32, 14) * 16);
    for (uint32_t row = 0; row < 128; ++row) {
        for (uint32_t block = 0; block < 4; ++block) {
            const uint32_t lane = row % 32, column = row / 32;
            const uint32_t copied = start + lane % 8 * 16 + lane / 8 * stride + column * 4 + block;
            EXPECT_EQ(copied, kTile + scale_tile_index(row, block, 4)) << row << ", " << block;
        }
    }
}

// The epilogue's word of a row's four scales, and the tile that a block of 128 columns begins.
TEST(BlockScales, WordsAreTheTilesBytes) {
    for (int32_t row = 0; row < 128; ++row) {
        for (int32_t block = 0; block < 4; ++block) {
            EXPECT_EQ(4 * kernels::scale_place_of_tile(row) + block,
                      scale_tile_index(row, block, 4));
        }
    }
    for (const int64_t k_tiles : {1, 5, 56}) {
        for (int64_t row = 0; row < 1024; row += 128) {
            for (int64_t k = 0; k < k_tiles; ++k) {
                EXPECT_EQ(kernels::first_scale_tile(row, k_tiles) + k,
                          scale_tile_index(row, 4 * k, 4 * k_tiles) / kScaleTileBytes);
            }
        }
    }
}

// Tensor memory of block-scaled products: sums and scales lie within it, scales apart from both
// accumulators, and what these share is within the 32 columns that consumers read first: the first
// accumulator's last, the second's first.
TEST(BlockScales, ColumnsOfTensorMemory) {
    using namespace kernels::block_scaled;
    EXPECT_GE(kScalesAt, kSecondAt + 256);
    EXPECT_LE(kScalesAt + kScaleTiles * kScaleTileColumns, kTensorColumns);
    EXPECT_EQ(kSharedColumns, 256 - kSecondAt);
    EXPECT_LE(kSharedColumns, 32u);
    EXPECT_EQ(kScalesAt % 4, 0u);
}

TEST(TensorMemory, AddressesAreLaneAndColumn) {
    EXPECT_EQ(tensor_address(0, 0, 0), 0u);
    EXPECT_EQ(tensor_address(0, 16, 256), 16u << 16 | 256u);
    EXPECT_EQ(tensor_address(0, 127, 511), 127u << 16 | 511u);
    EXPECT_EQ(tensor_address(256, 32, 0), 32u << 16 | 256u);
    EXPECT_EQ(kTensorLanes * kTensorColumns * 4, 256u * 1024);  // bytes of a multiprocessor
}

// Two consumers of four warps read every row of a tile once, each warp within the lanes that it
// reaches (PTX ISA, "Access restrictions": warp w of a warpgroup 32w up to 32w + 31), from a
// multiple of 16.
TEST(TensorMemory, ConsumersTakeEveryRowOnce) {
    std::set<int> rows;
    for (int consumer = 0; consumer < 2; ++consumer) {
        for (int warp = 0; warp < 4; ++warp) {
            const int first = kernels::first_tensor_row(consumer, warp);
            EXPECT_EQ(first % 16, 0);
            for (int lane = first; lane < first + 16; ++lane) {
                EXPECT_EQ(lane / 32, warp);
                EXPECT_TRUE(rows.insert(lane).second) << lane;
            }
        }
    }
    EXPECT_EQ(rows.size(), 128u);
    EXPECT_EQ(*rows.begin(), 0);
    EXPECT_EQ(*rows.rbegin(), 127);
}

}  // namespace
}  // namespace mok::arch
