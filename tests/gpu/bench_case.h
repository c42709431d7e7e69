#pragma once

#include <cstdint>
#include <vector>

#include "cli/common/random_case.h"

// What the benchmarks of the kernels alone share: shapes, large random cases, medians.
namespace mok_test {

struct BenchShape {
    const char* name;
    int64_t hidden, intermediate, experts, top_k;
};

// The slices of docs/performance.md.
inline constexpr BenchShape kSlices[] = {{"kimi-k2.7", 7168, 2048, 12, 8},
                                         {"glm-5.2", 6144, 2048, 8, 8},
                                         {"qwen3.5-397b", 4096, 1024, 16, 10},
                                         {"deepseek-v4-pro", 7168, 3072, 12, 6}};

// Uniform numbers of a deviation by a counter hash, on all cores: large tensors in little time.
void fill(std::vector<mok::Bf16>& t, int64_t size, float deviation, uint32_t seed);

// Inputs of a forward: x of deviation 1, weights that keep it, every choice weighted 1 / K.
mok::cli::RandomCase bench_case(const BenchShape& s, int64_t tokens, mok::cli::Routing routing);

float median(std::vector<float> values);  // not empty

}  // namespace mok_test
