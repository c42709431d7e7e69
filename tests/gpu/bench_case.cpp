#include "bench_case.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace mok_test {

using namespace mok;

void fill(std::vector<Bf16>& t, int64_t size, float deviation, uint32_t seed) {
    t.resize(size);
    const int threads = static_cast<int>(std::thread::hardware_concurrency());
    std::vector<std::jthread> pool;
    for (int w = 0; w < threads; ++w) {
        pool.emplace_back([&, w] {
            for (int64_t i = size * w / threads; i < size * (w + 1) / threads; ++i) {
                uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed * 40503u;
                h = (h ^ h >> 15) * 2246822519u;
                h = (h ^ h >> 13) * 3266489917u;
                t[i] = to_bf16((static_cast<float>((h ^ h >> 16) & 0xffff) / 65536.0f - 0.5f) *
                               3.4641f * deviation);
            }
        });
    }
}

cli::RandomCase bench_case(const BenchShape& s, int64_t tokens, cli::Routing routing) {
    cli::RandomCase c;
    c.shape.hidden = s.hidden;
    c.shape.intermediate = s.intermediate;
    c.shape.num_experts = s.experts;
    c.shape.top_k = s.top_k;
    c.num_tokens = tokens;
    const int64_t weights = s.experts * s.intermediate * s.hidden;
    fill(c.x, tokens * s.hidden, 1.0f, 1);
    fill(c.gate, weights, 1.0f / std::sqrt(float(s.hidden)), 2);
    fill(c.up, weights, 1.0f / std::sqrt(float(s.hidden)), 3);
    fill(c.down, weights, 1.0f / std::sqrt(float(s.intermediate)), 4);
    c.topk_ids = cli::random_ids(routing, tokens, s.experts, s.top_k, 5);
    c.topk_weights.assign(tokens * s.top_k, 1.0f / s.top_k);
    return c;
}

float median(std::vector<float> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

}  // namespace mok_test
