#include <bit>
#include <random>

#include "arch/copy.cuh"
#include "arch/wgmma_fp8.cuh"
#include "cpu/hopper_sums.h"
#include "device_case.h"
#include "math/e4m3.h"

// Sums of E4M3 products on Hopper's tensor cores against the model that the oracle has of them, bit
// for bit: 32, 64, 96 and 128 products, of normal numbers as blocks hold them and of any bits. A
// stand-alone program: prints how many sums differ and ends with 1 where one does.
namespace {

using namespace mok;
using namespace mok_test;

constexpr int kRows = 64, kDepth = 128;  // of both operands
constexpr int kBytes = kRows * kDepth, kSums = kRows * kRows;

// sums[i][j]: of the first 32 * steps products of row i of a and row j of b.
__global__ void sum_products(const uint8_t* a, const uint8_t* b, float* sums, int steps) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    extern __shared__ __align__(1024) uint8_t smem[];
    const int thread = threadIdx.x, lane = thread % 32, first = thread / 32 * 16;
    for (int i = thread; i < kBytes; i += 128) {
        const int r = i / kDepth, c = i % kDepth;
        const int at = r * kDepth + ((c / 16 ^ (r & 7)) << 4) + c % 16;
        smem[at] = a[i];
        smem[kBytes + at] = b[i];
    }
    arch::fence_shared_to_copies();
    __syncthreads();
    const int block = lane / 8, row = first + 8 * (block % 2) + lane % 8;
    const uint32_t base = arch::shared_address(smem);
    const uint32_t place = base + row * kDepth + ((block / 2 ^ (row & 7)) << 4);
    uint32_t v[4][4];
    for (int s = 0; s < 4; ++s) arch::load_matrix_x4(place ^ (s << 5), v[s]);
    const uint64_t descriptor = arch::k_major_descriptor(base + kBytes);
    float sum[32];
    arch::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        if (s < steps) arch::wgmma_m64n64k32_e4m3(sum, v[s], descriptor + 2 * s, s != 0);
    }
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    arch::settle(sum);
    for (int i = 0; i < 32; ++i) {
        const int r = first + 8 * (i / 2 % 2) + lane / 4, c = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        sums[r * kRows + c] = sum[i];
    }
#endif
}

std::vector<uint8_t> elements(std::mt19937& random, bool any_bits) {
    std::normal_distribution<float> normal(0.0f, 130.0f);
    std::vector<uint8_t> v(kBytes);
    for (uint8_t& e : v) {
        e = any_bits ? static_cast<uint8_t>(random()) : to_e4m3(normal(random)).bits;
        if ((e & 0x7f) == 0x7f) e ^= 1;  // no NaN
    }
    return v;
}

struct Factors {
    std::vector<float> values;
    std::vector<int32_t> exponents;

    explicit Factors(const std::vector<uint8_t>& from) {
        for (const uint8_t bits : from) {
            values.push_back(to_f32(E4m3{bits}));
            exponents.push_back(oracle::hopper_exponent(values.back()));
        }
    }
    oracle::HopperFactors row(int r) const { return {&values[r * kDepth], &exponents[r * kDepth]}; }
};

int64_t num_different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
    const DeviceMemory on_a(a), on_b(b), sums(kSums * sizeof(float));
    const Factors of_a(a), of_b(b);
    std::vector<float> found(kSums);
    int64_t different = 0;
    for (int steps = 1; steps <= 4; ++steps) {
        sum_products<<<1, 128, 2 * kBytes>>>(on_a.at<uint8_t>(), on_b.at<uint8_t>(),
                                             sums.at<float>(), steps);
        MOK_CUDA(cudaGetLastError());
        MOK_CUDA(cudaMemcpy(found.data(), sums.at<float>(), kSums * sizeof(float),
                            cudaMemcpyDeviceToHost));
        for (int i = 0; i < kRows; ++i) {
            for (int j = 0; j < kRows; ++j) {
                const float want = oracle::hopper_sum(of_a.row(i), of_b.row(j), 32 * steps);
                different +=
                    std::bit_cast<uint32_t>(want) != std::bit_cast<uint32_t>(found[i * kRows + j]);
            }
        }
    }
    return different;
}

}  // namespace

int main() {
    int major = 0;
    MOK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) {
        std::printf("test_hopper_sums: nothing to do on this GPU\n");
        return 0;
    }
    std::mt19937 random(1);
    int64_t different = 0, all = 0;
    for (int trial = 0; trial < 32; ++trial) {
        const bool any_bits = trial % 2 == 1;
        different += num_different(elements(random, any_bits), elements(random, any_bits));
        all += 4 * kSums;
    }
    std::printf("test_hopper_sums: %ld of %ld sums differ\n", long(different), long(all));
    return different == 0 ? 0 : 1;
}
