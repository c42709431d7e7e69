#include "layer/cuda_wait.h"

#include "layer/cuda_memory.h"
#include "layer/cuda_unended.h"
#include "layer/stream_wait.h"

namespace mok::layer {

void wait_for_rank(cudaStream_t stream, CudaFaults& faults, CudaPeers& peers) {
    StreamLook look;
    look.has_ended = [stream] {
        const cudaError_t state = cudaStreamQuery(stream);
        cudaGetLastError();  // one that is asked too early is no error
        if (state == cudaErrorNotReady) return false;
        check_cuda(state, "waiting for the stream");
        return true;
    };
    look.must_end = [&faults] { return faults.has_failed(); };
    look.attend_peers = peers.attendant();
    const WaitOutcome outcome = wait_for_stream(look, faults.wait_bounds());
    if (outcome.end == WaitEnd::Ended) return;
    doubt(stream, {});
    faults.throw_unended(outcome);
}

void doubt_after_failure(cudaStream_t stream, CudaFaults& faults) {
    if (!is_capturing(stream) && faults.has_failed_anew()) doubt(stream, kWindingDown);
}

}  // namespace mok::layer
