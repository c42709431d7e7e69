// Sanitizers: asan

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "cli/common/element_writer.h"
#include "cli/common/random_case.h"
#include "cli/common/rank_threads.h"
#include "cpu/reduce.h"
#include "layer/cpu_engine.h"

// The tasks that ElementWriter names are those that write the element: destroy what a finished pass
// has written, run the named tasks again and nothing else, and the element has its value again.
namespace mok::cli {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kRanks = 3;

CaseOptions case_options() {
    CaseOptions o;
    o.shape.hidden = 320;        // two column tiles of y, three of a gradient's rows
    o.shape.intermediate = 264;  // three column tiles of hidden
    o.shape.shared_intermediate = 136;
    o.shape.num_experts = 7;
    o.shape.top_k = 2;
    o.num_tokens = 700;  // more than one tile an expert
    o.biases = true;
    o.shared_weights = true;
    o.masked = 0.1;
    return o;
}

// One call on three ranks, its ranks kept alive after forward and backward.
class ElementWriterTest : public testing::Test {
  protected:
    struct Rank {
        Workspace workspace;
        Schedule schedule;
        Context context;
        Weights weights;
        Inputs inputs;
        WeightGrads grads;
    };

    ElementWriterTest() : case_(random_case(case_options())), ranks_(kRanks) {
        options_.num_ranks = kRanks;
        options_.tokens_per_rank = {300, 56, 344};
    }

    // The call as run_global makes it, up to the pass that is to be looked into.
    void run(plan::PassKind kind) {
        kind_ = kind;
        run_ranks(Group::in_process(kRanks), [&](const Group& group) { run_rank(group, kind); });
    }

    void run_rank(const Group& group, plan::PassKind kind) {
        const LayerShape& s = case_.shape;
        const int r = group.rank();
        const int64_t first = std::accumulate(options_.tokens_per_rank.begin(),
                                              options_.tokens_per_rank.begin() + r, int64_t{0});
        const int64_t n = options_.tokens_per_rank[r], h = s.hidden, i = s.intermediate;
        Workspace workspace(group, s, {}, 344);
        Schedule schedule(workspace, ConstTensor(case_.topk_ids.data() + first * s.top_k,
                                                 DType::I32, {n, s.top_k}));
        ranks_[r].emplace(Rank{std::move(workspace), std::move(schedule), {}, {}, {}, {}});
        Rank& rank = *ranks_[r];
        const int64_t e = rank.workspace.first_expert(), num = rank.workspace.num_local_experts();
        rank.weights = case_.inputs().weights;
        rank.weights.gate = ConstTensor(case_.gate.data() + e * i * h, DType::BF16, {num, i, h});
        rank.weights.up = ConstTensor(case_.up.data() + e * i * h, DType::BF16, {num, i, h});
        rank.weights.down = ConstTensor(case_.down.data() + e * i * h, DType::BF16, {num, h, i});
        rank.weights.gate_bias = ConstTensor(case_.gate_bias.data() + e * i, DType::BF16, {num, i});
        rank.weights.up_bias = ConstTensor(case_.up_bias.data() + e * i, DType::BF16, {num, i});
        rank.weights.down_bias = ConstTensor(case_.down_bias.data() + e * h, DType::BF16, {num, h});
        rank.inputs.x = ConstTensor(case_.x.data() + first * h, DType::BF16, {n, h});
        rank.inputs.topk_weights =
            ConstTensor(case_.topk_weights.data() + first * s.top_k, DType::F32, {n, s.top_k});
        rank.inputs.shared_weights =
            ConstTensor(case_.shared_weights.data() + first, DType::F32, {n});
        rank.grads = gradients(r, num);
        output_[r].resize(n * h);
        forward(rank.workspace, rank.schedule, rank.weights, rank.inputs,
                Tensor(output_[r].data(), DType::BF16, {n, h}), rank.context);
        if (kind == plan::PassKind::Forward) return;
        const ConstTensor d_out(case_.grad_output.data() + first * h, DType::BF16, {n, h});
        backward(rank.workspace, rank.schedule, rank.weights, rank.inputs, d_out, rank.context, {},
                 rank.grads);
    }

    WeightGrads gradients(int r, int64_t num) {
        const int64_t h = case_.shape.hidden, i = case_.shape.intermediate;
        const int64_t s = case_.shape.shared_intermediate;
        auto& storage = storage_[r];
        const auto make = [&storage](std::initializer_list<int64_t> shape) {
            int64_t elements = 1;
            for (const int64_t size : shape) elements *= size;
            storage.emplace_back(elements, kNan);
            return Tensor(storage.back().data(), DType::F32, shape);
        };
        storage.clear();
        storage.reserve(9);
        WeightGrads g;
        g.gate = make({num, i, h});
        g.up = make({num, i, h});
        g.down = make({num, h, i});
        g.gate_bias = make({num, i});
        g.up_bias = make({num, i});
        g.down_bias = make({num, h});
        g.shared_gate = make({s, h});
        g.shared_up = make({s, h});
        g.shared_down = make({h, s});
        return g;
    }

    static layer::CpuEngine& engine(Rank& rank) {
        return dynamic_cast<layer::CpuEngine&>(*rank.workspace.impl().engine);
    }

    cpu::RankPass pass(int r) {
        Rank& rank = *ranks_[r];
        return engine(rank).make_pass({kind_,
                                       rank.schedule.impl(),
                                       rank.weights,
                                       rank.inputs,
                                       {},
                                       {},
                                       {},
                                       rank.grads,
                                       &rank.context.impl()});
    }

    // What the tasks write on the way and at home, destroyed on every rank.
    void destroy_rows() {
        for (int r = 0; r < kRanks; ++r) {
            const Workspace::Impl& w = ranks_[r]->workspace.impl();
            const plan::WindowMap& window = w.window_map;
            const auto fill = [](std::byte* from, std::byte* to) {
                std::fill(from, to, std::byte{0xff});
            };
            std::byte* const own = engine(*ranks_[r]).window().data();
            std::byte* const local = engine(*ranks_[r]).local().data();
            fill(own + window.combine, own + window.barrier_flags);
            fill(local + w.map.out, local + w.map.row_weights);
            fill(local + w.map.router_partials, local + w.map.wgrad_scratch);
            fill(local + w.map.shared_out, local + w.map.signals);
        }
    }

    void run_again(const ElementOrigin& origin) {
        for (const RankTask& t : origin.tasks) cpu::run_task(pass(t.rank), t.task);
    }

    RandomCase case_;
    GlobalOptions options_;
    plan::PassKind kind_ = plan::PassKind::Forward;
    std::vector<std::optional<Rank>> ranks_;
    std::vector<Bf16> output_[kRanks];
    std::vector<std::vector<float>> storage_[kRanks];
};

struct Home {
    int rank;
    int64_t token;
};
Home home_of(int64_t token) {
    if (token < 300) return {0, token};
    return token < 356 ? Home{1, token - 300} : Home{2, token - 356};
}

TEST_F(ElementWriterTest, Output) {
    run(plan::PassKind::Forward);
    const ElementWriter writer(case_.shape, case_.inputs(), options_);
    for (const std::vector<int64_t>& at :
         {std::vector<int64_t>{0, 0}, {299, 255}, {300, 256}, {355, 319}, {356, 7}, {699, 300}}) {
        destroy_rows();
        run_again(writer.origin("output", at));
        const Home home = home_of(at[0]);
        const Rank& rank = *ranks_[home.rank];
        std::vector<Bf16> found(output_[home.rank].size());
        cpu::reduce_output(pass(home.rank), rank.schedule.impl().ids,
                           Tensor(found.data(), DType::BF16,
                                  {options_.tokens_per_rank[home.rank], case_.shape.hidden}));
        const int64_t element = home.token * case_.shape.hidden + at[1];
        EXPECT_EQ(found[element].bits, output_[home.rank][element].bits) << at[0] << "," << at[1];
    }
}

TEST_F(ElementWriterTest, InputGradients) {
    run(plan::PassKind::Backward);
    const ElementWriter writer(case_.shape, case_.inputs(), options_);
    const int64_t h = case_.shape.hidden;
    const auto reduce = [&](const Home& home, std::vector<float>& x, std::vector<float>& topk,
                            std::vector<float>& shared) {
        const int64_t n = options_.tokens_per_rank[home.rank];
        x.resize(n * h);
        topk.resize(n * 2);
        shared.resize(n);
        InputGrads grads;
        grads.x = Tensor(x.data(), DType::F32, {n, h});
        grads.topk_weights = Tensor(topk.data(), DType::F32, {n, 2});
        grads.shared_weights = Tensor(shared.data(), DType::F32, {n});
        cpu::reduce_input_grads(pass(home.rank), ranks_[home.rank]->schedule.impl().ids, grads);
    };
    for (const int64_t token : {0, 299, 300, 355, 356, 699}) {
        const Home home = home_of(token);
        run(plan::PassKind::Backward);
        std::vector<float> want[3], found[3];
        reduce(home, want[0], want[1], want[2]);
        const int64_t column = token % h;
        destroy_rows();
        run_again(writer.origin("grad_shared_weights", std::vector<int64_t>{token}));
        for (const int64_t choice : {0, 1}) {
            run_again(writer.origin("grad_topk_weights", std::vector<int64_t>{token, choice}));
        }
        reduce(home, found[0], found[1], found[2]);
        EXPECT_EQ(found[2][home.token], want[2][home.token]) << token;
        EXPECT_EQ(found[1][2 * home.token], want[1][2 * home.token]) << token;
        EXPECT_EQ(found[1][2 * home.token + 1], want[1][2 * home.token + 1]) << token;
        destroy_rows();
        run_again(writer.origin("grad_hidden_states", std::vector<int64_t>{token, column}));
        reduce(home, found[0], found[1], found[2]);
        EXPECT_EQ(found[0][home.token * h + column], want[0][home.token * h + column]) << token;
    }
}

TEST_F(ElementWriterTest, WeightGradients) {
    run(plan::PassKind::Backward);
    const ElementWriter writer(case_.shape, case_.inputs(), options_);
    const std::pair<const char*, Tensor WeightGrads::*> tensors[] = {
        {"grad_gate_proj", &WeightGrads::gate},
        {"grad_up_proj", &WeightGrads::up},
        {"grad_down_proj", &WeightGrads::down},
        {"grad_gate_bias", &WeightGrads::gate_bias},
        {"grad_up_bias", &WeightGrads::up_bias},
        {"grad_down_bias", &WeightGrads::down_bias},
        {"grad_shared_gate_proj", &WeightGrads::shared_gate},
        {"grad_shared_up_proj", &WeightGrads::shared_up},
        {"grad_shared_down_proj", &WeightGrads::shared_down}};
    for (const auto& [name, member] : tensors) {
        const bool is_shared = std::string_view(name).find("shared") != std::string_view::npos;
        for (const int64_t expert : {0, 3, 6}) {  // of ranks 0 (three experts), 1, 2
            const int r = expert == 0 ? 0 : expert == 3 ? 1 : 2;
            const Tensor& t = ranks_[r]->grads.*member;
            const int64_t local = is_shared ? 0 : expert - ranks_[r]->workspace.first_expert();
            const int last = t.dims - 1;
            for (const int64_t far : {0, 1}) {  // the first element of the expert, its last but one
                std::vector<int64_t> at;
                int64_t offset = is_shared ? 0 : local * t.stride[0];
                if (!is_shared) at.push_back(expert);
                for (int dim = is_shared ? 0 : 1; dim <= last; ++dim) {
                    at.push_back(far ? t.shape[dim] - 2 : 0);
                    offset += at.back() * t.stride[dim];
                }
                float& element = static_cast<float*>(t.data)[offset];
                const float want = element;
                ASSERT_FALSE(std::isnan(want)) << name;
                element = kNan;
                run_again(writer.origin(name, at));
                EXPECT_EQ(element, want) << name << " of expert " << expert << ", far " << far;
            }
        }
    }
}

}  // namespace
}  // namespace mok::cli
