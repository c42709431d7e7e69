#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "cpu/block.h"
#include "cpu/rank_pass.h"
#include "plan/make_problem.h"
#include "plan/route_table.h"

// The pieces that a pass on the CPU is made of, one thread.
namespace mok {
namespace {

std::vector<Bf16> random_rows(int64_t elements) {
    std::mt19937 random(1);
    std::vector<Bf16> rows(elements);
    for (Bf16& v : rows) {
        v = to_bf16(static_cast<float>(random()) * 0x1p-32f - 0.5f);
    }
    return rows;
}

// One 128 x 64 x 128 product, its operands laid out as the tasks have them.
void multiply_add(benchmark::State& state) {
    const auto a_layout = static_cast<cpu::Layout>(state.range(0));
    const auto b_layout = static_cast<cpu::Layout>(state.range(1));
    static cpu::Block a, b, c;
    const std::vector<Bf16> rows = random_rows(cpu::kBlock * cpu::kBlock);
    cpu::load_rows(a, rows.data(), cpu::kBlock, cpu::kBlock, 0, cpu::kBlock);
    cpu::load_rows(b, rows.data(), cpu::kBlock, cpu::kBlock, 0, cpu::kBlock);
    for (auto _ : state) {
        cpu::multiply_add(c.at, a.at, a_layout, b.at, b_layout);
        benchmark::ClobberMemory();
    }
    state.counters["FLOP/s"] = benchmark::Counter(2.0 * cpu::kBlock * cpu::kBlockCols * cpu::kBlock,
                                                  benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(multiply_add)->ArgNames({"a_k_outer", "b_k_outer"})->ArgsProduct({{0, 1}, {0, 1}});

// 128 x 128 BF16 elements of rows that lie H = 1024 apart, to FP32.
void load_rows(benchmark::State& state) {
    constexpr int64_t kHidden = 1024;
    static cpu::Block block;
    const std::vector<Bf16> rows = random_rows(cpu::kBlock * kHidden);
    int64_t col = 0;
    for (auto _ : state) {
        cpu::load_rows(block, rows.data(), kHidden, cpu::kBlock, col, kHidden);
        benchmark::ClobberMemory();
        col = (col + cpu::kBlock) % kHidden;
    }
    state.SetBytesProcessed(state.iterations() * cpu::kBlock * cpu::kBlock *
                            static_cast<int64_t>(sizeof(Bf16)));
}
BENCHMARK(load_rows);

// A layer of one expert and one choice on one rank: its 128 tokens are one tile.
struct OneTile {
    OneTile() {
        shape.hidden = 1024;
        shape.intermediate = 512;
        shape.num_experts = shape.top_k = 1;
        plan::Problem p = plan::make_problem(shape, Tuning(), 1, 0, plan::kTileRows);
        p.num_tokens = plan::kTileRows;
        p.minibatch_rows = plan::kTileRows;
        const std::vector<int32_t> ids(plan::kTileRows, 0);
        const int32_t* by_rank[] = {ids.data()};
        block.resize(plan::route_table_ints(p));
        plan::RouteTable table = plan::route_table_at(p, block.data());
        plan::build_route_table(p, by_rank, &p.num_tokens, table);
        const int64_t h = shape.hidden, i = shape.intermediate;
        rows.x = x.data();
        rows.gate = gate.data();
        rows.up = up.data();
        rows.w_hidden = hidden.data();
        pass.pass = {plan::PassKind::Forward, p, table};
        pass.saves_context = true;
        pass.weights.gate = ConstTensor(weights.data(), DType::BF16, {1, i, h});
        pass.weights.up = pass.weights.gate;
        pass.ring = pass.kept = rows;
    }

    LayerShape shape;
    std::vector<int32_t> block;
    std::vector<Bf16> x = random_rows(plan::kTileRows * 1024), weights = random_rows(512 * 1024);
    std::vector<Bf16> gate = random_rows(plan::kTileRows * 512), up = gate, hidden = gate;
    cpu::RowMemory rows{};
    cpu::RankPass pass{};
};

void gate_up_task(benchmark::State& state) {
    const OneTile tile;
    const plan::Task task{plan::TaskKind::GateUp, 0, 0, -1, -1};
    for (auto _ : state) {
        cpu::run_task(tile.pass, task);
        benchmark::ClobberMemory();
    }
    state.counters["FLOP/s"] =
        benchmark::Counter(2.0 * plan::kTileRows * 2 * plan::kGateUpCols * 1024,
                           benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(gate_up_task);

// The route table of one of 8 ranks from 8 x 1563 x 8 = 100032 routes to 128 experts.
void build_table(benchmark::State& state) {
    constexpr int kRanks = 8, kTokens = 1563, kTopK = 8, kExperts = 128;
    LayerShape shape;
    shape.hidden = shape.intermediate = 8;
    shape.num_experts = kExperts;
    shape.top_k = kTopK;
    const plan::Problem p = plan::make_problem(shape, Tuning(), kRanks, 0, kTokens);
    std::mt19937 random(1);
    std::vector<int32_t> ids(kRanks * kTokens * kTopK);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kExperts);
    std::vector<const int32_t*> by_rank;
    for (int r = 0; r < kRanks; ++r) by_rank.push_back(ids.data() + r * kTokens * kTopK);
    const std::vector<int32_t> num_tokens(kRanks, kTokens);
    std::vector<int32_t> block(plan::route_table_ints(p));
    plan::RouteTable table = plan::route_table_at(p, block.data());
    for (auto _ : state) {
        benchmark::DoNotOptimize(
            plan::build_route_table(p, by_rank.data(), num_tokens.data(), table));
        benchmark::ClobberMemory();
    }
    state.SetItemsProcessed(state.iterations() * std::ssize(ids));
}
BENCHMARK(build_table);

}  // namespace
}  // namespace mok

BENCHMARK_MAIN();
