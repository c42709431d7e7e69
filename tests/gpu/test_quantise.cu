// The FP8 formats and quantisers of src/math on the GPU against the same on the CPU, byte for byte:
// matrices of both recipes by rows, by columns and as weights; all products of E4M3 and E8M0 as
// BF16. And to_e4m3 of all 2^32 floats against the GPU's own conversion instruction.

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/quantise.h"

using namespace mok;

namespace {

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n", what, cudaGetErrorString(error));
    std::exit(2);
}
#define CHECK(call) check((call), #call)

template <class T>
class DeviceArray {
  public:
    explicit DeviceArray(const std::vector<T>& from) : count_(from.size()) {
        CHECK(cudaMalloc(&data_, std::max<size_t>(1, count_) * sizeof(T)));
        CHECK(cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { cudaFree(data_); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    T* data() const { return data_; }
    std::vector<T> read() const {
        std::vector<T> to(count_);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(to.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }

  private:
    T* data_ = nullptr;
    size_t count_;
};

// A matrix seen with K along `k_stride`.
struct Source {
    const Bf16* data;
    int64_t outer, k;
    int64_t outer_stride, k_stride;
    int64_t rows_per_scale;
};

// One thread a scale: the block, or the rows_per_scale blocks, that share it.
template <class Recipe>
__global__ void quantise(Source s, E4m3* elements, typename Recipe::Scale* scales) {
    const int64_t num_blocks = (s.k + Recipe::kBlock - 1) / Recipe::kBlock;
    const int64_t num_groups = (s.outer + s.rows_per_scale - 1) / s.rows_per_scale;
    const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    if (at >= num_groups * num_blocks) return;
    const int64_t group = at / num_blocks, block = at % num_blocks;
    const int64_t begin = block * Recipe::kBlock;
    const int64_t left = s.k - begin;
    const int64_t first_row = group * s.rows_per_scale;
    const auto source = [&](int64_t row) {
        return BlockSource{s.data + row * s.outer_stride + begin * s.k_stride, s.k_stride,
                           left < Recipe::kBlock ? left : Recipe::kBlock};
    };
    Amax amax;
    for (int64_t r = first_row; r < first_row + s.rows_per_scale && r < s.outer; ++r) {
        amax = max_with(amax, source(r));
    }
    const typename Recipe::Scale scale = Recipe::scale_of(amax);
    scales[Recipe::scale_index(group, block, num_blocks)] = scale;
    for (int64_t r = first_row; r < first_row + s.rows_per_scale && r < s.outer; ++r) {
        quantise_elements<Recipe>(source(r), scale,
                                  elements + r * num_blocks * Recipe::kBlock + begin);
    }
}

// Mismatches of to_e4m3 with cvt.rn.satfinite.e4m3x2.f32 over the floats [first, first + 2^31), and
// one of them.
__global__ void compare_conversion(uint32_t first, unsigned long long* count, uint32_t* example) {
    for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < uint64_t{1} << 31;
         i += uint64_t{gridDim.x} * blockDim.x) {
        const uint32_t bits = first + static_cast<uint32_t>(i);
        const float v = __uint_as_float(bits);
        if (to_e4m3(v).bits == __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3)) continue;
        atomicAdd(count, 1ull);
        *example = bits;
    }
}

// bf16[element][scale].
__global__ void dequantise_all(Bf16* bf16) {
    bf16[blockIdx.x * 256 + threadIdx.x] =
        dequantise({static_cast<uint8_t>(blockIdx.x)}, {static_cast<uint8_t>(threadIdx.x)});
}

// ---- Comparison: the first byte that differs is named.
template <class T>
int differs(const std::string& what, const std::vector<T>& found, const std::vector<T>& want) {
    for (size_t i = 0; i < want.size(); ++i) {
        if (std::memcmp(&found[i], &want[i], sizeof(T)) == 0) continue;
        std::printf("%s[%zu] differs from the CPU's\n", what.c_str(), i);
        return 1;
    }
    return 0;
}

template <class Recipe>
int test_operand(const std::string& what, const Source& source,
                 const cpu::Quantised<Recipe>& want) {
    using Scale = typename Recipe::Scale;
    std::vector<E4m3> poison(want.elements.size(), E4m3{0x5a});
    const DeviceArray<E4m3> elements(poison);
    const DeviceArray<Scale> scales(std::vector<Scale>(want.scales.size(), Scale{}));
    const int64_t count = want.outer * want.num_blocks;
    quantise<Recipe>
        <<<static_cast<int>(count / 128 + 1), 128>>>(source, elements.data(), scales.data());
    CHECK(cudaGetLastError());
    return differs(what + " elements", elements.read(), want.elements) +
           differs(what + " scales", scales.read(), want.scales);
}

template <class Recipe>
int test_matrix(const char* recipe, const cpu::Bf16Matrix& m, const Bf16* on_device) {
    const std::string name =
        std::string(recipe) + " " + std::to_string(m.rows) + "x" + std::to_string(m.cols);
    const Source rows{on_device, m.rows, m.cols, m.stride, 1, 1};
    const Source columns{on_device, m.cols, m.rows, 1, m.stride, 1};
    Source weight_rows = rows, weight_columns = columns;
    weight_rows.rows_per_scale = weight_columns.rows_per_scale = Recipe::kWeightRows;
    const auto weight = cpu::quantise_weights<Recipe>(m);
    return test_operand(name + " rows", rows, cpu::quantise_rows<Recipe>(m)) +
           test_operand(name + " columns", columns, cpu::quantise_columns<Recipe>(m)) +
           test_operand(name + " weight by rows", weight_rows, weight.by_rows) +
           test_operand(name + " weight by columns", weight_columns, weight.by_columns);
}

// Blocks of 32 whose sizes range over all of BF16's, or any bits at all, infinities and NaNs too.
std::vector<Bf16> values(int64_t count, bool any_bits, std::mt19937& rng) {
    std::vector<Bf16> v(count);
    uint32_t top = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(rng());
        if (i % 32 == 0) top = bits % 250u;
        const uint32_t exponent = top + (bits >> 16) % 5u;
        const uint32_t spread = (bits & 0x807fu) | exponent << 7;
        v[i].bits = static_cast<uint16_t>(any_bits ? bits : spread);
    }
    return v;
}

int test_matrices() {
    std::mt19937 rng(1);
    int failures = 0;
    constexpr int64_t kShapes[][2] = {{1, 1},     {1, 32},   {33, 44},    {44, 33},
                                      {128, 128}, {129, 40}, {257, 1000}, {1000, 257}};
    for (const auto& shape : kShapes) {
        for (const bool any_bits : {false, true}) {
            const int64_t rows = shape[0], cols = shape[1], stride = cols + 3;
            const std::vector<Bf16> source = values(rows * stride, any_bits, rng);
            const DeviceArray<Bf16> on_device(source);
            const cpu::Bf16Matrix m{source.data(), rows, cols, stride};
            failures += test_matrix<Fp8Block>("fp8_block", m, on_device.data());
            failures += test_matrix<Mxfp8>("mxfp8", m, on_device.data());
        }
    }
    return failures;
}

int test_dequantise() {
    std::vector<Bf16> want(256 * 256);
    for (int i = 0; i < 256 * 256; ++i) {
        want[i] = dequantise({static_cast<uint8_t>(i / 256)}, {static_cast<uint8_t>(i % 256)});
    }
    const DeviceArray<Bf16> found(std::vector<Bf16>(want.size()));
    dequantise_all<<<256, 256>>>(found.data());
    CHECK(cudaGetLastError());
    return differs("dequantise", found.read(), want);
}

int test_conversion() {
    const DeviceArray<unsigned long long> count({0});
    const DeviceArray<uint32_t> example({0});
    for (const uint32_t first : {0u, 0x80000000u}) {
        compare_conversion<<<1024, 256>>>(first, count.data(), example.data());
        CHECK(cudaGetLastError());
    }
    const unsigned long long found = count.read()[0];
    if (found == 0) return 0;
    std::printf("to_e4m3 and the GPU's conversion differ for %llu floats, one is 0x%08x\n", found,
                example.read()[0]);
    return 1;
}

}  // namespace

int main() {
    const int failures = test_matrices() + test_dequantise() + test_conversion();
    std::printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
