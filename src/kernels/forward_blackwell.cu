#include "kernels/blackwell.cuh"
#include "kernels/forward_exchange.cuh"
#include "kernels/launch.h"
#include "kernels/loader.cuh"
#include "kernels/prepared_devices.h"
#include "kernels/scheduler.cuh"
#include "kernels/task_queue.cuh"
#include "kernels/teller.cuh"

// The forward pass of one rank on sm_100a and sm_103a. The roles are Hopper's (forward.cu), and one
// more:
//     scheduler -> (queue) -> loader -> (stages) -> issuer -> (tensor memory) -> consumers
namespace mok::kernels {
namespace {

struct Launch {
    ForwardParams params;
    ExpertMaps routed, shared;
};

struct BlackwellMemory : ForwardSharedMemory {
    BlackwellState blackwell;
};
constexpr int kBlackwellBytes = sizeof(BlackwellMemory) + 1024;
static_assert(kBlackwellBytes <= 232448, "227 KB of shared memory a CTA");

__device__ void init_barriers(BlackwellMemory& smem) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);  // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], kStageReaders);
    }
    for (int i = 0; i < kQueue; ++i) {
        arch::barrier_init(&smem.task_full[i], 32);  // the scheduler's lanes
        arch::barrier_init(&smem.task_empty[i],
                           3 + kConsumers * 128);  // loader, issuer, teller, consumers
        arch::barrier_init(&smem.task_done[i], kConsumers * 4);
    }
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, 1);
    init_launch_control(smem.blackwell.launch);
    init_tensor_memory(smem.blackwell.tensor, 1);
    arch::barrier_init_fence();
}

__device__ void run_issuer(BlackwellMemory& smem) {
    Issuer issuer(smem, smem.blackwell.tensor);
    for_each_task_to_issue(smem, [&](int32_t k_blocks) {
        issuer.issue({k_blocks, arch::Major::K, arch::Major::K, false, false, 0});
    });
}

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    forward_blackwell_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    BlackwellMemory& smem = shared_memory_in<BlackwellMemory>(raw);
    const ForwardParams& p = launch.params;
    const arch::Cluster alone{0, 1};
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) init_barriers(smem);
    if (warp == kIssuerWarp) begin_tensor_memory(smem.blackwell);
    arch::umma_fence_before();
    __syncthreads();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<BlackwellForwardRegisters::kMovers>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem, LaunchedExchange(smem.blackwell.launch), alone);
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, alone, LaunchedTickets(p, smem.blackwell.launch)).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_forward_teller(p, smem);
            } else {
                Loader(p, launch.routed, launch.shared, smem, alone).run();
            }
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<BlackwellForwardRegisters::kConsumerThreads>();
        const int consumer = warpgroup - 1;
        Consumer(p, launch.routed, launch.shared, smem,
                 TensorMemoryEngine<1>(smem, smem.blackwell.tensor, consumer), consumer)
            .run();
    } else {
        arch::give_registers<BlackwellForwardRegisters::kIssuer>();
        if (threadIdx.x == kIssuerWarp * 32) run_issuer(smem);
    }
    __syncwarp();
    __syncthreads();  // nobody reads the tensor memory any more
    if (warp == kIssuerWarp) end_tensor_memory(smem.blackwell);
}

}  // namespace

cudaError_t launch_forward_blackwell(const ForwardParams& params, const ExpertMaps& routed,
                                     const ExpertMaps& shared, int max_sms, cudaStream_t stream) {
    Launch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    int grid = 0;
    cudaError_t error = blackwell_grid(max_sms, 1, grid);
    if (error != cudaSuccess) return error;
    static SharedMemoryLimit limit;
    error = limit.set(reinterpret_cast<const void*>(forward_blackwell_kernel), kBlackwellBytes);
    if (error != cudaSuccess) return error;
    forward_blackwell_kernel<<<grid, kBlackwellThreads, kBlackwellBytes, stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
