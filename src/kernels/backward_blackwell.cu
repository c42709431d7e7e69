#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_issuer.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/blackwell.cuh"
#include "kernels/launch.h"
#include "kernels/prepared_devices.h"

// A backward pass of one rank on sm_100a and sm_103a. The roles are Hopper's (backward.cu), and one
// more:
//     scheduler -> (entries) -> loader -> (stages) -> issuer -> (tensor memory) -> consumers
//     -> stores -> teller -> signals
namespace mok::kernels {
namespace {

struct BackwardLaunch {
    BackwardParams params;
    BackwardMaps routed, shared;
};

struct BlackwellBackwardMemory : BackwardSharedMemory {
    BlackwellState blackwell;
};
constexpr int kBlackwellBackwardBytes = sizeof(BlackwellBackwardMemory) + 1024;
static_assert(kBlackwellBackwardBytes <= 232448, "227 KB of shared memory a CTA");

__device__ void init_backward_barriers(BlackwellBackwardMemory& smem) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);  // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], kStageReaders);
    }
    for (int i = 0; i < kEntries; ++i) {
        arch::barrier_init(&smem.entry_full[i], 1);               // the scheduler
        arch::barrier_init(&smem.entry_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.entry_empty[i],
                           3 + kConsumers * 128);  // loader, issuer, teller, consumers
    }
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, 1);
    init_launch_control(smem.blackwell.launch);
    init_tensor_memory(smem.blackwell.tensor, 1);
    arch::barrier_init_fence();
}

__device__ void run_issuer(const BackwardParams& p, BlackwellBackwardMemory& smem) {
    Issuer issuer(smem, smem.blackwell.tensor);
    arch::RingState<kEntries> task;
    while (true) {
        arch::barrier_wait(&smem.entry_full[task.index], task.parity);
        const BackwardEntry& e = smem.entries[task.index];
        const bool more = e.more;
        const Products products = products_of(p, e);
        arch::barrier_arrive(&smem.entry_empty[task.index]);
        task.advance();
        if (!more) return;
        issuer.issue(products);
    }
}

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    backward_blackwell_kernel(const __grid_constant__ BackwardLaunch launch) {
    extern __shared__ uint8_t raw[];
    BlackwellBackwardMemory& smem = shared_memory_in<BlackwellBackwardMemory>(raw);
    const BackwardParams& p = launch.params;
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) init_backward_barriers(smem);
    if (warp == kIssuerWarp) begin_tensor_memory(smem.blackwell);
    arch::umma_fence_before();
    __syncthreads();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<BlackwellBackwardRegisters::kMovers>();
        if (warp == kExchangeWarp) {
            run_backward_exchange(p, smem, LaunchedExchange(smem.blackwell.launch));
        } else if (warp == kSchedulerWarp) {
            run_backward_scheduler(p, smem, LaunchedTasks(p, smem.blackwell.launch));
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_teller(p, smem);
            } else {
                BackwardLoader(p, launch.routed, launch.shared, smem).run();
            }
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<BlackwellBackwardRegisters::kConsumerThreads>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, launch.routed, launch.shared, smem,
                         TensorMemoryEngine<1>(smem, smem.blackwell.tensor, consumer), consumer)
            .run();
    } else {
        arch::give_registers<BlackwellBackwardRegisters::kIssuer>();
        if (threadIdx.x == kIssuerWarp * 32) run_issuer(p, smem);
    }
    __syncwarp();
    __syncthreads();  // nobody reads the tensor memory any more
    if (warp == kIssuerWarp) end_tensor_memory(smem.blackwell);
}

}  // namespace

cudaError_t launch_backward_blackwell(const BackwardParams& params, const BackwardMaps& routed,
                                      const BackwardMaps& shared, int max_sms,
                                      cudaStream_t stream) {
    BackwardLaunch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    int grid = 0;
    cudaError_t error = blackwell_grid(max_sms, 1, grid);
    if (error != cudaSuccess) return error;
    static SharedMemoryLimit limit;
    error = limit.set(reinterpret_cast<const void*>(backward_blackwell_kernel),
                      kBlackwellBackwardBytes);
    if (error != cudaSuccess) return error;
    backward_blackwell_kernel<<<grid, kBlackwellThreads, kBlackwellBackwardBytes, stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
