#include "device_case.h"

#include <algorithm>
#include <numeric>

namespace mok_test {

using namespace mok;

namespace {

template <class T>
std::vector<T> slice(const std::vector<T>& all, int64_t first, int64_t num) {
    if (all.empty()) return {};
    return std::vector<T>(all.begin() + first, all.begin() + first + num);
}

arch::MatrixStack stack(const Bf16* data, int64_t count, int64_t rows, int64_t cols) {
    return {data, std::max<int64_t>(count, 1), std::max<int64_t>(rows, 1), cols, cols, rows * cols};
}

plan::Problem make_problem(const LayerShape& s, const Tuning& t, int ranks, int rank,
                           int64_t max_tokens, int64_t tokens, int max_sms) {
    plan::Problem p{};
    p.num_ranks = ranks;
    p.rank = rank;
    p.hidden = s.hidden;
    p.intermediate = s.intermediate;
    p.num_experts = s.num_experts;
    p.top_k = s.top_k;
    p.shared_intermediate = s.shared_intermediate;
    p.max_tokens = max_tokens;
    p.num_tokens = tokens;
    p.keep_x = t.keep_x;
    const int64_t most = std::max<int64_t>(plan::max_slots(p), plan::kTileRows);
    p.macrobatch_rows = std::min<int64_t>(t.macrobatch_rows, most);
    p.context_rows = t.context_rows < 0 ? most : std::min<int64_t>(t.context_rows, most);
    p.minibatch_rows =
        t.minibatch_rows > 0
            ? t.minibatch_rows
            : plan::forward_granularity(max_sms, s.hidden, s.intermediate).default_rows;
    return p;
}

}  // namespace

DeviceCase::DeviceCase(const cli::RandomCase& c, const DeviceOptions& options) : options_(options) {
    const LayerShape& s = c.shape;
    const int R = options.num_ranks;
    const int64_t H = s.hidden, I = s.intermediate, S = s.shared_intermediate, K = s.top_k;
    cli::GlobalOptions split;
    split.num_ranks = R;
    const std::vector<int64_t> tokens = cli::split_tokens(c.num_tokens, split);
    const int64_t max_tokens = *std::max_element(tokens.begin(), tokens.end());
    MOK_CUDA(cudaHostAlloc(&fault_, R * sizeof(kernels::FaultRecord), cudaHostAllocMapped));
    if (S > 0) {
        shared_gate = DeviceMemory(c.shared_gate);
        shared_up = DeviceMemory(c.shared_up);
        shared_down = DeviceMemory(c.shared_down);
    }
    std::vector<int64_t> first(R + 1, 0);
    std::partial_sum(tokens.begin(), tokens.end(), first.begin() + 1);
    ranks.resize(R);
    for (int r = 0; r < R; ++r) ranks[r].ids = slice(c.topk_ids, first[r] * K, tokens[r] * K);
    for (int r = 0; r < R; ++r) {
        VirtualRank& v = ranks[r];
        plan::Problem& p = v.problem;
        p = make_problem(s, options.tuning, R, r, max_tokens, tokens[r], options.max_sms);
        v.window_map = plan::window_map(p, plan::RunsOn::Gpu);
        v.map = plan::workspace_map(p, plan::RunsOn::Gpu);
        v.window = DeviceMemory(v.window_map.total);
        v.local = DeviceMemory(v.map.total);
        v.out = DeviceMemory(tokens[r] * H * 2);
        v.ids_device = DeviceMemory(v.ids);
        const int64_t T = tokens[r], x0 = first[r];
        MOK_CUDA(cudaMemcpy(v.window.at<char>(v.window_map.x), c.x.data() + x0 * H, T * H * 2,
                            cudaMemcpyHostToDevice));
        MOK_CUDA(cudaMemcpy(v.window.at<char>(v.window_map.topk_weights),
                            c.topk_weights.data() + x0 * K, T * K * 4, cudaMemcpyHostToDevice));
        if (!c.shared_weights.empty())
            v.shared_weights = DeviceMemory(slice(c.shared_weights, x0, T));
        const int64_t e0 = plan::first_expert(p, r), E = plan::num_local_experts(p);
        v.gate = DeviceMemory(slice(c.gate, e0 * I * H, E * I * H));
        v.up = DeviceMemory(slice(c.up, e0 * I * H, E * I * H));
        v.down = DeviceMemory(slice(c.down, e0 * I * H, E * I * H));
        v.gate_bias = DeviceMemory(slice(c.gate_bias, e0 * I, E * I));
        v.up_bias = DeviceMemory(slice(c.up_bias, e0 * I, E * I));
        v.down_bias = DeviceMemory(slice(c.down_bias, e0 * H, E * H));

        std::vector<const int32_t*> ids;
        std::vector<int32_t> counts;
        for (int h = 0; h < R; ++h) {
            ids.push_back(ranks[h].ids.data());
            counts.push_back(tokens[h]);
        }
        std::vector<int32_t> block(plan::route_table_ints(p));
        plan::RouteTable host = plan::route_table_at(p, block.data());
        plan::build_route_table(p, ids.data(), counts.data(), host);
        v.table = DeviceMemory(block);
        const int64_t kept = std::min<int64_t>(p.context_rows, plan::num_slots(host));
        v.context_map = plan::context_map(p, kept, T, true);
        v.context = DeviceMemory(v.context_map.total);
        v.control = DeviceMemory(256);
    }
    for (int r = 0; r < R; ++r) {
        VirtualRank& v = ranks[r];
        const plan::Problem& p = v.problem;
        const int64_t E = plan::num_local_experts(p), B = plan::ring_rows(p);
        kernels::ForwardParams& f = v.params;
        f = {};
        f.pass = {plan::PassKind::Forward, p, plan::route_table_at(p, v.table.at<int32_t>())};
        f.pass.problem.keep_x = false;  // the context's x is filled by the test
        f.activation = s.activation;
        f.saves_context = options.saves_context;
        f.biases = {!c.gate_bias.empty(),   !c.up_bias.empty(),   !c.down_bias.empty(),
                    v.gate_bias.at<Bf16>(), v.up_bias.at<Bf16>(), v.down_bias.at<Bf16>()};
        for (int h = 0; h < R; ++h) {
            f.peer_x[h] = ranks[h].window.at<Bf16>(ranks[h].window_map.x);
            f.peer_combine[h] = ranks[h].window.at<Bf16>(ranks[h].window_map.combine);
        }
        f.ring_x = v.local.at<Bf16>(v.map.x);
        f.signals = v.local.at<uint32_t>(v.map.signals);
        f.tickets = v.control.at<uint32_t>();
        f.aborted = v.control.at<uint32_t>(64);
        f.fault = fault_ + r;
        f.fault->raised = 0;
        f.timeout_ns = 2'000'000'000;
        f.times = v.control.at<kernels::PassTimes>(128);
        const auto map = [](const Bf16* at, int64_t n, int64_t rows, int64_t cols, int box) {
            return arch::make_tensor_map(stack(at, n, rows, cols), box);
        };
        const auto weights = [](const Bf16* at, int64_t n, int64_t rows, int64_t cols) {
            return arch::make_tensor_map_by_fours(stack(at, n, rows, cols), kernels::kLoadRows);
        };
        Bf16* const hidden = v.local.at<Bf16>(v.map.w_hidden);
        v.routed = {map(f.ring_x, 1, B, H, 128),
                    weights(v.gate.at<Bf16>(), E, I, H),
                    weights(v.up.at<Bf16>(), E, I, H),
                    map(hidden, 1, B, I, 128),
                    weights(v.down.at<Bf16>(), E, H, I),
                    hidden,
                    v.context.at<Bf16>(v.context_map.gate),
                    v.context.at<Bf16>(v.context_map.up),
                    nullptr};
        v.shared = v.routed;
        if (S > 0) {
            const int64_t rows = plan::shared_rows(p, p.num_tokens);
            Bf16* const h = v.local.at<Bf16>(v.map.shared_w_hidden);
            v.shared = {map(f.peer_x[r], 1, p.num_tokens, H, 128),
                        weights(shared_gate.at<Bf16>(), 1, S, H),
                        weights(shared_up.at<Bf16>(), 1, S, H),
                        map(h, 1, rows, S, 128),
                        weights(shared_down.at<Bf16>(), 1, H, S),
                        h,
                        v.context.at<Bf16>(v.context_map.shared_gate),
                        v.context.at<Bf16>(v.context_map.shared_up),
                        v.local.at<Bf16>(v.map.shared_out)};
        }
        v.reduce = {p.num_tokens,
                    p.hidden,
                    p.top_k,
                    v.ids_device.at<int32_t>(),
                    v.window.at<float>(v.window_map.topk_weights),
                    p.top_k,
                    v.window.at<Bf16>(v.window_map.combine),
                    S > 0,
                    v.local.at<Bf16>(v.map.shared_out),
                    !c.shared_weights.empty(),
                    v.shared_weights.at<float>(),
                    v.out.at<Bf16>(),
                    DType::BF16,
                    p.hidden};
    }
}

void DeviceCase::run(cudaStream_t stream) {
    for (VirtualRank& v : ranks) {
        MOK_CUDA(cudaMemsetAsync(v.params.signals, 0, plan::num_signals(v.problem) * 4, stream));
        MOK_CUDA(cudaMemsetAsync(v.control.at<char>(), 0, 256, stream));
    }
    for (VirtualRank& v : ranks) {
        MOK_CUDA(kernels::launch_forward(v.params, v.routed, v.shared, options_.max_sms, stream));
    }
    for (VirtualRank& v : ranks) MOK_CUDA(kernels::launch_reduce(v.reduce, stream));
}

std::string DeviceCase::fault() const {
    for (size_t r = 0; r < ranks.size(); ++r) {
        const kernels::FaultRecord& f = fault_[r];
        if (f.raised == 0) continue;
        char text[200];
        std::snprintf(text, sizeof(text), "rank %zu: %s tile %d part %d waits for %s[%d]: %u of %u",
                      r, plan::task_name(f.task.kind), f.task.tile, f.task.part,
                      plan::signal_name(f.wait.kind), f.wait.index, f.have, f.wait.want);
        return text;
    }
    return {};
}

std::vector<Bf16> DeviceCase::output() const {
    std::vector<Bf16> all;
    for (const VirtualRank& v : ranks) {
        std::vector<Bf16> part(int64_t{v.problem.num_tokens} * v.problem.hidden);
        MOK_CUDA(
            cudaMemcpy(part.data(), v.out.at<char>(), part.size() * 2, cudaMemcpyDeviceToHost));
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

}  // namespace mok_test
