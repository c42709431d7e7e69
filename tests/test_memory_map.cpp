#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/memory_map.h"

namespace mok::plan {
namespace {

// A buffer as the contract states it: where it begins, and its bytes from its shape.
struct Expected {
    const char* name;
    int64_t begin;
    int64_t bytes;
};

Problem small_problem() {
    Problem p{};
    p.num_ranks = 2;
    p.rank = 1;
    p.hidden = 264;
    p.intermediate = 136;
    p.num_experts = 5;
    p.top_k = 3;
    p.shared_intermediate = 0;
    p.max_tokens = 100;
    p.num_tokens = 77;
    p.minibatch_rows = 128;
    p.macrobatch_rows = 256;
    p.context_rows = 128;
    p.keep_x = false;
    return p;
}

Problem kimi_problem() {  // kimi-k2.7 on 8 ranks, one shared expert
    Problem p{};
    p.num_ranks = 8;
    p.rank = 3;
    p.hidden = 7168;
    p.intermediate = 2048;
    p.num_experts = 384;
    p.top_k = 8;
    p.shared_intermediate = 2048;
    p.max_tokens = 65536;
    p.num_tokens = 65536;
    p.minibatch_rows = 2432;
    p.macrobatch_rows = 131072;
    p.context_rows = 1 << 30;
    p.keep_x = true;
    return p;
}

// Aligned, inside the block, no two over each other, none forgotten: the buffers fill the block but
// for less than one alignment each.
void expect_disjoint(const std::vector<Expected>& buffers, int64_t total) {
    int64_t sum = 0;
    for (const Expected& a : buffers) {
        EXPECT_EQ(a.begin % 256, 0) << a.name;
        EXPECT_GE(a.begin, 0) << a.name;
        EXPECT_LE(a.begin + a.bytes, total) << a.name;
        sum += a.bytes;
        for (const Expected& b : buffers) {
            if (&a == &b || a.bytes == 0 || b.bytes == 0) continue;
            EXPECT_TRUE(a.begin + a.bytes <= b.begin || b.begin + b.bytes <= a.begin)
                << a.name << " lies over " << b.name;
        }
    }
    EXPECT_EQ(total % 256, 0);
    EXPECT_LT(total - sum, 256 * static_cast<int64_t>(buffers.size()));
}

bool fp8(const Problem& p) {
    return p.precision != Precision::BF16;
}
int64_t padded(int64_t cols) {
    return (cols + 127) / 128 * 128;
}

std::vector<Expected> window_buffers(const Problem& p, const WindowMap& m) {
    const int64_t t = p.max_tokens, h = p.hidden, k = p.top_k;
    const int64_t wire = fp8(p) && p.fp8_dispatch ? t : 0;
    return {{"x", m.x, 2 * t * h},
            {"d_y", m.d_y, 2 * t * h},
            {"topk_weights", m.topk_weights, 4 * t * k},
            {"ids 0", m.ids[0], 4 * t * k},
            {"ids 1", m.ids[1], 4 * t * k},
            {"num_tokens 0", m.num_tokens[0], 4},
            {"num_tokens 1", m.num_tokens[1], 4},
            {"combine", m.combine, 2 * t * k * h},
            {"d_topk_weights", m.d_topk_weights, 4 * t * k},
            {"x8", m.x8.elements, wire * padded(h)},
            {"x8 scales", m.x8.scales, wire * padded(h) / 32},
            {"barrier_flags", m.barrier_flags, int64_t{8} * p.num_ranks}};
}

// rows of the ring, padded rows of the shared expert, floats of the scratch.
std::vector<Expected> workspace_buffers(const Problem& p, const WorkspaceMap& m, int64_t rows,
                                        int64_t shared, int64_t scratch) {
    const int64_t h = p.hidden, i = p.intermediate, s = p.shared_intermediate;
    const int64_t wide = fp8(p) ? 0 : rows, narrow = fp8(p) ? rows : 0;
    const int64_t h8 = narrow * padded(h), i8 = narrow * padded(i);
    return {
        {"x", m.x, 2 * rows * h},
        {"d_y", m.d_y, 2 * rows * h},
        {"gate", m.gate, 2 * wide * i},
        {"up", m.up, 2 * wide * i},
        {"x8", m.x8.elements, h8},
        {"x8 scales", m.x8.scales, h8 / 32},
        {"d_y8", m.d_y8.elements, h8},
        {"d_y8 scales", m.d_y8.scales, h8 / 32},
        {"gate8", m.gate8.elements, i8},
        {"gate8 scales", m.gate8.scales, i8 / 32},
        {"up8", m.up8.elements, i8},
        {"up8 scales", m.up8.scales, i8 / 32},
        {"d_gate8", m.d_gate8.elements, i8},
        {"d_gate8 scales", m.d_gate8.scales, i8 / 32},
        {"d_up8", m.d_up8.elements, i8},
        {"d_up8 scales", m.d_up8.scales, i8 / 32},
        {"w_hidden", m.w_hidden, 2 * rows * i},
        {"d_gate", m.d_gate, 2 * rows * i},
        {"d_up", m.d_up, 2 * rows * i},
        {"out", m.out, 2 * rows * h},
        {"row_weights", m.row_weights, 4 * rows},
        {"router_partials", m.router_partials, 4 * rows * ((i + 127) / 128 + 1)},
        {"wgrad_scratch", m.wgrad_scratch, 4 * scratch},
        {"shared_w_hidden", m.shared_w_hidden, 2 * shared * s},
        {"shared_d_gate", m.shared_d_gate, 2 * shared * s},
        {"shared_d_up", m.shared_d_up, 2 * shared * s},
        {"shared_out", m.shared_out, 2 * shared * h},
        {"shared_router_partials", m.shared_router_partials, 4 * shared * ((s + 127) / 128 + 1)},
        {"signals", m.signals, int64_t{4} * num_signals(p)}};
}

std::vector<Expected> context_buffers(const Problem& p, const ContextMap& m, int64_t rows,
                                      int64_t shared, bool operands) {
    const int64_t h = p.hidden, i = p.intermediate, s = p.shared_intermediate;
    const int64_t kept = p.keep_x ? rows : 0, late = operands ? 1 : 0;
    const int64_t wide = fp8(p) ? 0 : rows, i8 = fp8(p) ? rows * padded(i) : 0;
    return {{"gate", m.gate, 2 * wide * i},
            {"up", m.up, 2 * wide * i},
            {"gate8", m.gate8.elements, i8},
            {"gate8 scales", m.gate8.scales, i8 / 32},
            {"up8", m.up8.elements, i8},
            {"up8 scales", m.up8.scales, i8 / 32},
            {"x", m.x, 2 * kept * h},
            {"shared_gate", m.shared_gate, 2 * shared * s},
            {"shared_up", m.shared_up, 2 * shared * s},
            {"w_hidden", m.w_hidden, late * 2 * rows * i},
            {"d_gate", m.d_gate, late * 2 * rows * i},
            {"d_up", m.d_up, late * 2 * rows * i},
            {"d_y", m.d_y, late * 2 * kept * h},
            {"row_weights", m.row_weights, late * 4 * kept},
            {"shared_w_hidden", m.shared_w_hidden, late * 2 * shared * s},
            {"shared_d_gate", m.shared_d_gate, late * 2 * shared * s},
            {"shared_d_up", m.shared_d_up, late * 2 * shared * s}};
}

TEST(MemoryMap, WindowBuffersAreDisjointAndFillTheBlock) {
    for (const Problem& p : {small_problem(), kimi_problem()}) {
        const WindowMap m = window_map(p);
        expect_disjoint(window_buffers(p, m), m.total);
    }
}

TEST(MemoryMap, WorkspaceBuffersAreDisjointAndFillTheBlock) {
    // Rank 1 of 2 owns 2 of 5 experts: at most 2*100*3 routes, 2*127 padding rows: 854, so 768.
    const Problem small = small_problem();
    const WorkspaceMap m = workspace_map(small);
    expect_disjoint(workspace_buffers(small, m, 256, 0, 3 * 136 * 264 + 2 * 136 + 264), m.total);

    const Problem kimi = kimi_problem();
    const WorkspaceMap k = workspace_map(kimi);
    expect_disjoint(
        workspace_buffers(kimi, k, 131072, 65536, int64_t{3} * 2048 * 7168 + 2 * 2048 + 7168),
        k.total);
}

// 256 rows of y and d_x, 264 columns, and their three router partials are the CPU's alone; on a GPU
// the window has three for each of 100 tokens' 3 choices in place of the gradients.
TEST(MemoryMap, OnAGpuThereAreNoRowsOfResults) {
    const Problem p = small_problem();
    const WorkspaceMap cpu = workspace_map(p), gpu = workspace_map(p, RunsOn::Gpu);
    EXPECT_EQ(cpu.total - gpu.total, 256 * 264 * 2 + 256 * 3 * 4);
    EXPECT_EQ(gpu.row_weights, gpu.out);
    EXPECT_EQ(cpu.row_weights - cpu.out, 256 * 264 * 2);
    const WindowMap window = window_map(p, RunsOn::Gpu);
    EXPECT_EQ(window.router_partials, window.d_topk_weights);
    EXPECT_EQ(window.barrier_flags - window.router_partials, (100 * 3 * 3 * 4 + 255) / 256 * 256);
}

TEST(MemoryMap, ARingThatNoRoutingCanFillIsSmallerAndNeedsNoScratch) {
    Problem p = small_problem();
    p.macrobatch_rows = 131072;
    const WorkspaceMap m = workspace_map(p);
    expect_disjoint(workspace_buffers(p, m, 768, 0, 0), m.total);
    p.macrobatch_rows = 640;
    expect_disjoint(workspace_buffers(p, workspace_map(p), 640, 0, 3 * 136 * 264 + 2 * 136 + 264),
                    workspace_map(p).total);
}

TEST(MemoryMap, SharedRowsAreWholeTiles) {
    Problem p = small_problem();
    p.shared_intermediate = 40;
    const WorkspaceMap m = workspace_map(p);
    expect_disjoint(workspace_buffers(p, m, 256, 128, 3 * 136 * 264 + 2 * 136 + 264), m.total);
}

TEST(MemoryMap, ARankWithoutExpertsHasNoRing) {
    Problem p = small_problem();
    p.num_experts = 1;
    ASSERT_EQ(num_local_experts(p), 0);
    const WorkspaceMap m = workspace_map(p);
    expect_disjoint(workspace_buffers(p, m, 0, 0, 0), m.total);
}

TEST(MemoryMap, ContextBuffersAreDisjointAndFillTheBlock) {
    for (const bool operands : {false, true}) {
        for (const bool keep_x : {false, true}) {
            SCOPED_TRACE(testing::Message() << "operands " << operands << " keep_x " << keep_x);
            Problem p = small_problem();
            p.keep_x = keep_x;
            const ContextMap m = context_map(p, 384, 77, operands);
            expect_disjoint(context_buffers(p, m, 384, 0, operands), m.total);
            p.shared_intermediate = 72;
            const ContextMap s = context_map(p, 384, 77, operands);
            expect_disjoint(context_buffers(p, s, 384, 128, operands), s.total);
            const ContextMap none = context_map(p, 0, 0, operands);
            EXPECT_EQ(none.total, 0);
        }
    }
}

// backward_input adds its operands to a context that a forward has filled.
TEST(MemoryMap, OperandsDoNotMoveTheForwardsBuffers) {
    Problem p = kimi_problem();
    const ContextMap a = context_map(p, 4096, 500, false), b = context_map(p, 4096, 500, true);
    EXPECT_EQ(a.gate, b.gate);
    EXPECT_EQ(a.up, b.up);
    EXPECT_EQ(a.x, b.x);
    EXPECT_EQ(a.shared_gate, b.shared_gate);
    EXPECT_EQ(a.shared_up, b.shared_up);
    EXPECT_LT(a.total, b.total);
}

// Both recipes have the same bytes; in BF16 nothing of it is there.
TEST(MemoryMap, RowsOfFp8) {
    for (const Precision precision : {Precision::Fp8Block, Precision::Mxfp8}) {
        for (const bool dispatch : {false, true}) {
            Problem p = small_problem();
            p.precision = precision;
            p.fp8_dispatch = dispatch;
            expect_disjoint(window_buffers(p, window_map(p)), window_map(p).total);
            expect_disjoint(
                workspace_buffers(p, workspace_map(p), 256, 0, 3 * 136 * 264 + 2 * 136 + 264),
                workspace_map(p).total);
            for (const bool operands : {false, true}) {
                const ContextMap m = context_map(p, 384, 77, operands);
                expect_disjoint(context_buffers(p, m, 384, 0, operands), m.total);
            }
        }
    }
}

// Worked out on paper: hidden 264 and intermediate 136 are padded to 384 and 256; rank 1 of 2 has 2
// of 5 experts.
TEST(MemoryMap, Fp8Weights) {
    Problem p = small_problem();
    EXPECT_EQ(fp8_weights_map(p).total, 0);
    p.precision = Precision::Fp8Block;
    const Fp8WeightsMap block = fp8_weights_map(p);
    const auto buffers = [](const Fp8WeightsMap& m, int64_t by_h, int64_t by_i) {
        std::vector<Expected> all;
        for (const Fp8MatrixMap& x : {m.gate, m.up, m.down_t}) {  // [136, 264]
            all.push_back({"elements", x.elements, int64_t{2} * 136 * 384});
            all.push_back({"scales", x.scales, 2 * by_h});
        }
        for (const Fp8MatrixMap& x : {m.down, m.gate_t, m.up_t}) {  // [264, 136]
            all.push_back({"elements", x.elements, int64_t{2} * 264 * 256});
            all.push_back({"scales", x.scales, 2 * by_i});
        }
        return all;
    };
    // f32 for 2 x 3 and 3 x 2 blocks of 128 x 128.
    expect_disjoint(buffers(block, 4 * 2 * 3, 4 * 3 * 2), block.total);
    p.precision = Precision::Mxfp8;
    const Fp8WeightsMap mx = fp8_weights_map(p);
    // A byte for 32 columns, in tiles of 512 bytes: 2 x 3 and 3 x 2 tiles.
    expect_disjoint(buffers(mx, 512 * 2 * 3, 512 * 3 * 2), mx.total);
}

// Worked out on paper from the shapes, each buffer rounded up to 256 bytes.
TEST(MemoryMap, TotalsOfASmallShape) {
    const Problem p = small_problem();
    // Window: x, d_y: 100*264*2 = 52800 -> 52992. [100,3] of 4 bytes: 1200 -> 1280, four of them.
    // Two counts: 256 each. combine: 300*264*2 = 158400 -> 158464. Flags: 16 -> 256.
    EXPECT_EQ(window_map(p).total, 2 * 52992 + 4 * 1280 + 2 * 256 + 158464 + 256);
    // Ring of 256 rows: [.,264] bf16 135168 (528*256), three; [.,136] bf16 69632, five; weights
    // 1024; partials 256*3*4 = 3072. Scratch: (107712 + 272 + 264) * 4 = 432992 -> 433152.
    // Signals: 6 tiles at most, 6 * 6 + 2 experts + 3 macrobatches + 1 = 42 -> 168 -> 256 bytes.
    EXPECT_EQ(workspace_map(p).total, 3 * 135168 + 5 * 69632 + 1024 + 3072 + 433152 + 256);
    // 384 rows of gate and up: 384 * 272 = 104448 each.
    EXPECT_EQ(context_map(p, 384, 77, false).total, 2 * 104448);
    EXPECT_EQ(context_map(p, 384, 77, true).total, 5 * 104448);
    // Table: R 2, segments 3, homes 2*3, cursors 2, tiles 6, four times 768 slots, 3 + 4.
    EXPECT_EQ(table_bytes(p), 4 * (2 + 3 + 6 + 2 + 6 + 4 * 768 + 7));
}

TEST(MemoryMap, TotalsOfALargeShapePass2To31) {
    const Problem p = kimi_problem();
    const int64_t mib = 1024 * 1024;
    // x, d_y 896 MiB each; combine 8 times as much; four [65536, 8] of 4 bytes: 2 MiB each.
    EXPECT_EQ(window_map(p).total, (2 * 896 + 8 * 896 + 4 * 2) * mib + 3 * 256);
    // Ring: 3 of [131072, 7168] at 1792 MiB, 5 of [131072, 2048] at 512 MiB, weights 0.5 MiB,
    // partials [131072, 17] 8.5 MiB. Scratch: 3 * 56 MiB, then 11264 floats = 45056 bytes. Shared:
    // 3 of [65536, 2048] at 256 MiB, out 896 MiB, partials [65536, 17] 4.25 MiB.
    // Signals: 48 experts; 8*65536*8 + 48*127 = 4200400 rows, so 32815 tiles, and 512 shared ones:
    // 6 * 33327 + 48 + 33 macrobatches + 1 = 200044 -> 800176 bytes -> 800256.
    const int64_t quarter = mib / 4;
    EXPECT_EQ(workspace_map(p).total, (3 * 1792 + 5 * 512 + 9 + 3 * 56 + 3 * 256 + 896 + 4) * mib +
                                          quarter + 45056 + 800256);
    // Context of a million rows: gate, up 4 GiB each, x 14 GiB; shared gate and up 256 MiB each.
    EXPECT_EQ(context_map(p, 1048576, 65536, false).total, (22 * 1024 + 512) * mib);
    // And w_hidden, d_gate, d_up 4 GiB each, d_y 14 GiB, weights 4 MiB, shared operands 768 MiB.
    EXPECT_EQ(context_map(p, 1048576, 65536, true).total,
              (22 * 1024 + 512 + 26 * 1024 + 4 + 768) * mib);
}

}  // namespace
}  // namespace mok::plan
