#include "cli/common/gather.h"

#include <algorithm>

#include "plan/problem.h"

namespace mok::cli {
namespace {

using Parts = std::vector<std::span<std::byte>>;

constexpr const char* kResults = "gathering of results";

template <class T>
void gather_tensor(const Group& group, const std::vector<int64_t>& rows, std::vector<T>& tensor) {
    gather_rows(group, rows, std::as_writable_bytes(std::span(tensor)), kResults);
}

void gather_links(const Group& group, std::vector<LinkBytes>& links) {
    Parts parts;
    for (LinkBytes& link : links) {
        link.pulled.resize(group.size());
        link.pushed.resize(group.size());
        parts.push_back(std::as_writable_bytes(std::span(link.pulled)));
    }
    gather_parts(group, parts, "gathering of bytes over links");
    for (int r = 0; r < group.size(); ++r) {
        parts[r] = std::as_writable_bytes(std::span(links[r].pushed));
    }
    gather_parts(group, parts, "gathering of bytes over links");
}

int64_t sum_over_ranks(const Group& group, int64_t mine) {
    int64_t sum = 0;
    for (const int64_t one : gather_values(group, mine, "gathering of sizes")) sum += one;
    return sum;
}

}  // namespace

void gather_parts(const Group& group, const Parts& parts, const char* what) {
    std::size_t most = 0;
    for (const auto& part : parts) most = std::max(most, part.size());
    const auto chunk_of = [&parts](int rank, std::size_t at) {
        const std::span<std::byte> part = parts[rank];
        const std::size_t begin = std::min(at, part.size());
        return part.subspan(begin, std::min(comm::kMaxExchangeBytes, part.size() - begin));
    };
    for (std::size_t at = 0; at < most; at += comm::kMaxExchangeBytes) {
        const std::vector<comm::Bytes> all =
            group.state().exchange_bytes(group.rank(), chunk_of(group.rank(), at), what);
        for (int r = 0; r < group.size(); ++r) {
            const std::span<std::byte> to = chunk_of(r, at);
            if (all[r].size() != to.size()) throw Error("gathering: a rank sent another size");
            if (r != group.rank()) std::ranges::copy(all[r], to.begin());
        }
    }
}

void gather_rows(const Group& group, const std::vector<int64_t>& rows_of_rank,
                 std::span<std::byte> tensor, const char* what) {
    int64_t all = 0;
    for (const int64_t rows : rows_of_rank) all += rows;
    if (all == 0 || tensor.empty()) return;
    const std::size_t row_bytes = tensor.size() / static_cast<std::size_t>(all);
    Parts parts;
    for (const int64_t rows : rows_of_rank) {
        const std::size_t bytes = row_bytes * static_cast<std::size_t>(rows);
        parts.push_back(tensor.first(bytes));
        tensor = tensor.subspan(bytes);
    }
    gather_parts(group, parts, what);
}

std::vector<int64_t> experts_per_rank(int num_experts, int num_ranks) {
    std::vector<int64_t> experts(num_ranks);
    for (int r = 0; r < num_ranks; ++r) {
        experts[r] = plan::first_expert(num_experts, num_ranks, r + 1) -
                     plan::first_expert(num_experts, num_ranks, r);
    }
    return experts;
}

void gather_result(const Group& group, const LayerShape& shape,
                   const std::vector<int64_t>& tokens_per_rank, GlobalResult& r) {
    gather_tensor(group, tokens_per_rank, r.output);
    gather_tensor(group, tokens_per_rank, r.d_x);
    gather_tensor(group, tokens_per_rank, r.d_topk_weights);
    gather_tensor(group, tokens_per_rank, r.d_shared_weights);
    const auto experts = experts_per_rank(static_cast<int>(shape.num_experts), group.size());
    for (std::vector<float>* gradient :
         {&r.d_gate, &r.d_up, &r.d_down, &r.d_gate_bias, &r.d_up_bias, &r.d_down_bias}) {
        gather_tensor(group, experts, *gradient);
    }
    gather_tensor(group, experts, r.tokens_per_expert);
    gather_links(group, r.links);
    r.workspace_bytes = sum_over_ranks(group, r.workspace_bytes);
    r.context_bytes = sum_over_ranks(group, r.context_bytes);
}

void pass_on_shared_gradients(const Group& group, int rank, GlobalResult& r) {
    for (std::vector<float>* gradient : {&r.d_shared_gate, &r.d_shared_up, &r.d_shared_down}) {
        Parts parts(group.size());
        parts[rank] = std::as_writable_bytes(std::span(*gradient));
        gather_parts(group, parts, "passing on of shared gradients");
    }
}

}  // namespace mok::cli
