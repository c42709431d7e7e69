// Schedules and contexts in memory of the caller's, moved between the calls.
// Sanitizers: asan
#include "layer_fixture.h"

#include <cstring>

#include "layer/state.h"
#include "openmok/layer.h"

namespace mok_test {
namespace {

// 16-byte aligned memory of exactly these bytes, full of NaN.
class Bytes {
  public:
    explicit Bytes(int64_t size) : memory_((size + 15) / 16), size_(size) {
        std::memset(memory_.data(), 0xff, memory_.size() * sizeof(Piece));
    }
    Block block() { return {memory_.data(), size_}; }
    Block moved_to(Bytes& other) {
        std::memcpy(other.memory_.data(), memory_.data(), size_);
        std::memset(memory_.data(), 0xff, size_);
        return other.block();
    }

  private:
    struct alignas(16) Piece {
        std::byte bytes[16];
    };
    std::vector<Piece> memory_;
    int64_t size_;
};

TEST(Blocks, WhatIsMovedGoesOnToTheSameBits) {
    for (const auto& [tokens, context_rows, keep_x] :
         {std::tuple<int64_t, int64_t, bool>{200, -1, false}, {200, 256, true}, {1, -1, false}}) {
        RandomCase c = cli::random_case(rich_case(tokens));
        const GlobalResult want = run(c, {});
        Tuning tuning;
        tuning.context_rows = context_rows;
        tuning.keep_x = keep_x;
        Workspace w(Group::self(), c.shape, tuning, tokens),
            larger(Group::self(), c.shape, tuning, 3 * tokens);
        EXPECT_EQ(w.schedule_bytes(tokens), larger.schedule_bytes(tokens));
        EXPECT_EQ(w.context_bytes(tokens), larger.context_bytes(tokens));
        Bytes table(w.schedule_bytes(tokens)), moved_table(w.schedule_bytes(tokens));
        Bytes kept(w.context_bytes(tokens)), moved_kept(w.context_bytes(tokens));
        const RankPart part = part_of(c, w, 0, tokens);
        RankOutputs o(c, w, tokens);
        {
            const Schedule schedule(w, part.ids, table.block());
            Context context(kept.block());
            forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
            EXPECT_LE(context.bytes(), w.context_bytes(tokens));
        }
        poison(larger);
        const Schedule schedule = Schedule::restored(larger, tokens, table.moved_to(moved_table));
        Context context = Context::restored(larger, schedule, kept.moved_to(moved_kept));
        backward(larger, schedule, part.weights, part.inputs, part.grad_output, context,
                 o.input_grads(), o.weight_grads());
        expect_same(c.shape, o.result(), want);
        const auto rows = schedule.tokens_per_expert();
        EXPECT_EQ(
            std::accumulate(rows.begin(), rows.end(), int64_t{0}),
            std::count_if(c.topk_ids.begin(), c.topk_ids.end(), [](int id) { return id >= 0; }));
    }
}

TEST(Blocks, TokensPerExpertWhereTheCallerWantsThem) {
    constexpr int64_t kTokens = 50;
    RandomCase c = cli::random_case(case_of(kTokens));
    Workspace w(Group::self(), c.shape, {}, kTokens);
    const int64_t experts = c.shape.num_experts;
    Bytes table(w.schedule_bytes(kTokens));
    const RankPart part = part_of(c, w, 0, kTokens);
    std::vector<int32_t> rows(experts, -1);
    const Schedule schedule(w, part.ids, table.block(), {rows.data(), DType::I32, {experts}});
    for (int64_t e = 0; e < experts; ++e) {
        EXPECT_EQ(rows[e], std::count(c.topk_ids.begin(), c.topk_ids.end(), e)) << "expert " << e;
    }
    const auto refused = [&](Tensor to) { Schedule(w, part.ids, table.block(), to); };
    EXPECT_THROW(refused({rows.data(), DType::I64, {experts}}), ShapeError);
    EXPECT_THROW(refused({rows.data(), DType::I32, {experts - 1}}), ShapeError);
}

TEST(Blocks, TooSmallOrNotAligned) {
    RandomCase c = cli::random_case(case_of(50));
    Workspace w(Group::self(), c.shape, {}, 50);
    const RankPart part = part_of(c, w, 0, 50);
    RankOutputs o(c, w, 50);
    const int64_t bytes = w.schedule_bytes(50);
    Bytes table(bytes + 16), kept(w.context_bytes(50));
    const auto sentence = [](const std::function<void()>& call) -> std::string {
        try {
            call();
        } catch (const ShapeError& e) {
            return e.what();
        }
        return "no error";
    };
    EXPECT_EQ(sentence([&] {
                  Schedule(w, part.ids, Block{table.block().data, bytes - 1});
              }),
              "schedule: expected a block of at least " + std::to_string(bytes) + " bytes, found " +
                  std::to_string(bytes - 1));
    EXPECT_EQ(
        sentence([&] {
            Schedule(w, part.ids, Block{static_cast<std::byte*>(table.block().data) + 4, bytes});
        }),
        "schedule: expected a block aligned to 16 bytes, found one that is not");
    const Schedule schedule(w, part.ids, table.block());
    Context small(Block{kept.block().data, 64});
    EXPECT_NE(sentence([&] {
                  forward(w, schedule, part.weights, part.inputs, o.out.tensor(), small);
              }).find("context: expected a block of at least"),
              std::string::npos);
    EXPECT_EQ(sentence([&] { w.context_bytes(51); }),
              "num_tokens: expected 0 to the workspace's max_tokens 50, found 51");
    EXPECT_EQ(sentence([&] { Schedule::restored(w, -1, table.block()); }),
              "num_tokens: expected 0 to the workspace's max_tokens 50, found -1");
}

}  // namespace
}  // namespace mok_test
