#include <algorithm>

#include "arch/copy.cuh"
#include "cpu/quantise.h"
#include "fp8_case.h"
#include "kernels/fp8_units.cuh"

// Units of a backward in Fp8Block on a GPU: bytes by rows and by slots against the CPU's
// quantisers, for values of all sizes and any bits, tiles that are not full and columns that end
// inside a block. A stand-alone program: prints what failed and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
using kernels::kABytes, kernels::kStages;

struct Launch {
    kernels::Fp8BackwardParams params;
    kernels::Fp8BackwardMaps maps;
    int32_t first_block, num_blocks, num_rows;
};

// Two consumers of 128 threads, and a warp that loads: d_y's unit of the only tile.
constexpr int kThreads = 288;
__global__ void __launch_bounds__(kThreads, 1) make_unit(const __grid_constant__ Launch launch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& smem = *reinterpret_cast<kernels::Fp8BackwardSharedMemory*>(raw);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) {
            arch::barrier_init(&smem.full[i], 1);
            arch::barrier_init(&smem.empty[i], kernels::kConsumers);
        }
        arch::barrier_init_fence();
    }
    __syncthreads();
    arch::RingState<kStages> stage;
    const int consumer = threadIdx.x / 128;
    if (consumer == kernels::kConsumers) {
        if (threadIdx.x % 32 != 0) return;
        stage.parity = 1;
        for (int32_t i = 0; i < launch.num_blocks; ++i) {
            arch::Barrier* const full = &smem.full[stage.index];
            arch::barrier_wait(&smem.empty[stage.index], stage.parity);
            arch::barrier_arrive_expect(full, 2 * kABytes);
            for (int box = 0; box < 4; ++box) {
                arch::load_tile(
                    smem.stage[stage.index] + box * (kABytes / 2), &launch.maps.ring.d_y,
                    128 * (launch.first_block + i) + box / 2 * 64, box % 2 * 64, 0, full);
            }
            stage.advance();
        }
        return;
    }
    const kernels::Unit unit{kernels::Operand::DY, launch.first_block, launch.num_blocks, 0,
                             launch.num_rows};
    const auto next_stage = [&] {
        const int index = stage.index;
        arch::barrier_wait(&smem.full[index], stage.parity);
        stage.advance();
        return index;
    };
    const auto release = [&](int index) {
        if (threadIdx.x % 128 == 0) arch::barrier_arrive(&smem.empty[index]);
    };
    kernels::UnitTask(launch.params, unit, smem, consumer).run(next_stage, release);
#endif
}

template <class T>
std::vector<uint8_t> bytes_on(const DeviceMemory& at, int64_t count) {
    std::vector<uint8_t> bytes(count * sizeof(T));
    MOK_CUDA(cudaMemcpy(bytes.data(), at.at<char>(), bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
}
template <class T>
std::vector<uint8_t> bytes_of_all(const std::vector<T>& values) {
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return {begin, begin + values.size() * sizeof(T)};
}

// A tile of num_rows rows, the others NaN.
void check_tile(int64_t cols, int64_t num_rows, bool any_bits) {
    constexpr int64_t kRows = plan::kTileRows;
    std::vector<Bf16> rows = values(kRows * cols, any_bits, 3);
    std::fill(rows.begin() + num_rows * cols, rows.end(), Bf16{0x7fff});
    const int64_t padded = plan::fp8_padded(cols), blocks = padded / 128;
    const DeviceMemory from(rows), by_rows(kRows * padded), by_slots(kRows * padded);
    const DeviceMemory row_scales(kRows * blocks * 4), slot_scales(padded * 4);
    Launch launch{};
    plan::Problem& problem = launch.params.pass.problem;
    problem.hidden = static_cast<int32_t>(cols);
    problem.intermediate = 128;
    launch.params.pass.kind = plan::PassKind::Backward;
    launch.params.d_y = {by_rows.at<uint8_t>(), row_scales.at<float>()};
    launch.params.d_y_slots = {by_slots.at<uint8_t>(), slot_scales.at<float>()};
    launch.maps.ring.d_y =
        arch::make_tensor_map({from.at<void>(), 1, kRows, cols, cols, kRows * cols}, 64);
    launch.num_rows = static_cast<int32_t>(num_rows);
    MOK_CUDA(cudaFuncSetAttribute(make_unit, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kernels::kFp8BackwardSharedBytes));
    for (int32_t first = 0; first < blocks; first += kernels::kUnitBlocks) {
        launch.first_block = first;
        launch.num_blocks = std::min<int32_t>(kernels::kUnitBlocks, blocks - first);
        make_unit<<<1, kThreads, kernels::kFp8BackwardSharedBytes>>>(launch);
        MOK_CUDA(cudaGetLastError());
    }
    MOK_CUDA(cudaDeviceSynchronize());

    const cpu::Bf16Matrix matrix{rows.data(), num_rows, cols, cols};
    const auto want_slots = cpu::quantise_columns<Fp8Block>(matrix);
    const auto want_rows = cpu::quantise_rows<Fp8Block>(matrix);
    const std::string name =
        std::to_string(num_rows) + " x " + std::to_string(cols) + (any_bits ? " of any bits" : "");
    same_bytes(bytes_on<E4m3>(by_slots, cols * kRows), bytes_of_all(want_slots.elements),
               name + ", by slots");
    same_bytes(bytes_on<float>(slot_scales, cols), bytes_of_all(want_slots.scales),
               name + ", scales by slots");
    same_bytes(bytes_on<E4m3>(by_rows, num_rows * padded), bytes_of_all(want_rows.elements),
               name + ", by rows");
    // By tile: [block][row].
    std::vector<float> scales(kRows * blocks);
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t b = 0; b < blocks; ++b) scales[b * kRows + r] = want_rows.scale_at(r, b);
    }
    std::vector<uint8_t> found = bytes_on<float>(row_scales, kRows * blocks);
    for (int64_t b = 0; b < blocks; ++b) {  // of the others nobody reads the scales
        std::fill(found.begin() + 4 * (b * kRows + num_rows), found.begin() + 4 * (b + 1) * kRows,
                  uint8_t{0});
    }
    same_bytes(found, bytes_of_all(scales), name + ", scales by rows");
}

}  // namespace

int main() {
    if (has_block_scales()) {
        std::printf("test_fp8_units: nothing to do on this GPU\n");
        return 0;
    }
    check_tile(2048, 128, true);
    check_tile(2048, 128, false);
    check_tile(1280, 77, false);
    check_tile(200, 128, false);
    check_tile(72, 1, false);
    std::printf("test_fp8_units: %d passed, %d failed\n", num_passed, num_failed);
    return num_failed == 0 ? 0 : 1;
}
