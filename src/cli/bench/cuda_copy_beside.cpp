#include "cli/bench/cuda_copy_beside.h"

#include "kernels/plain_copy.h"
#include "layer/cuda_check.h"
#include "layer/cuda_memory.h"
#include "layer/device_copy.h"

namespace mok::cli {

using layer::check_cuda;

CopyBeside::CopyBeside(const Device& device)
    : device_(device), memory_(layer::cuda_memory(device, 2 * kBytes)) {
    const layer::DeviceScope scope(device.index);
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check_cuda(cudaEventCreate(&end_), "an event");
    // Data that no copy can skip.
    check_cuda(cudaMemset(memory_.data(), 0x5a, kBytes), "filling a copy's source");
}

CopyBeside::~CopyBeside() {
    const layer::DeviceScope scope(device_.index);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
}

void CopyBeside::start(cudaEvent_t begin) {
    check_cuda(cudaStreamWaitEvent(stream_, begin, 0), "a copy beside a pass");
    check_cuda(kernels::launch_plain_copy(memory_.data() + kBytes, memory_.data(), kBytes, kBlocks,
                                          stream_),
               "a copy beside a pass");
    check_cuda(cudaEventRecord(end_, stream_), "an event");
}

void CopyBeside::finish(cudaEvent_t begin) {
    check_cuda(cudaEventSynchronize(end_), "a copy beside a pass");
    float ms = 0.0f;
    check_cuda(cudaEventElapsedTime(&ms, begin, end_), "the time of a copy");
    times_.push_back(ms);
}

}  // namespace mok::cli
