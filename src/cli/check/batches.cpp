#include "cli/check/batches.h"

#include <algorithm>

namespace mok::cli {
namespace {

// Rows of `width` elements at these indices; an empty tensor stays empty.
template <class T>
std::vector<T> take(const std::vector<T>& rows, int64_t width, const std::vector<int64_t>& tokens) {
    std::vector<T> taken;
    if (rows.empty()) return taken;
    for (const int64_t token : tokens) {
        const auto row = rows.begin() + token * width;
        taken.insert(taken.end(), row, row + width);
    }
    return taken;
}

template <class T>
void replace(std::vector<T>& rows, int64_t begin, const std::vector<T>& other) {
    if (!rows.empty()) std::copy(other.begin() + begin, other.end(), rows.begin() + begin);
}

}  // namespace

RandomCase take_tokens(const RandomCase& c, const std::vector<int64_t>& tokens) {
    RandomCase taken = c;
    taken.num_tokens = std::ssize(tokens);
    taken.x = take(c.x, c.shape.hidden, tokens);
    taken.grad_output = take(c.grad_output, c.shape.hidden, tokens);
    taken.topk_ids = take(c.topk_ids, c.shape.top_k, tokens);
    taken.topk_weights = take(c.topk_weights, c.shape.top_k, tokens);
    taken.shared_weights = take(c.shared_weights, 1, tokens);
    return taken;
}

RandomCase replace_tokens(const RandomCase& c, int64_t first, const RandomCase& other) {
    RandomCase replaced = c;
    replace(replaced.x, first * c.shape.hidden, other.x);
    replace(replaced.grad_output, first * c.shape.hidden, other.grad_output);
    replace(replaced.topk_ids, first * c.shape.top_k, other.topk_ids);
    replace(replaced.topk_weights, first * c.shape.top_k, other.topk_weights);
    replace(replaced.shared_weights, first, other.shared_weights);
    return replaced;
}

GlobalResult take_rows(const LayerShape& shape, const GlobalResult& r,
                       const std::vector<int64_t>& tokens) {
    GlobalResult taken;
    taken.output = take(r.output, shape.hidden, tokens);
    taken.d_x = take(r.d_x, shape.hidden, tokens);
    taken.d_topk_weights = take(r.d_topk_weights, shape.top_k, tokens);
    taken.d_shared_weights = take(r.d_shared_weights, 1, tokens);
    return taken;
}

std::vector<int64_t> split_in_blocks(int64_t num_tokens, int num_ranks) {
    constexpr int64_t kBlock = 128;
    const int64_t blocks = (num_tokens + kBlock - 1) / kBlock;
    std::vector<int64_t> split;
    int64_t begin = 0;
    for (int r = 0; r < num_ranks; ++r) {
        const int64_t more = r < blocks % num_ranks ? 1 : 0;
        const int64_t count = (blocks / num_ranks + more) * kBlock;
        split.push_back(std::min(count, num_tokens - begin));
        begin += split.back();
    }
    return split;
}

}  // namespace mok::cli
