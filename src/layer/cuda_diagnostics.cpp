#include "layer/cuda_diagnostics.h"

#include <algorithm>

#include "layer/cuda_check.h"

namespace mok::layer {

void read_device(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream),
               "reading device memory");
    check_cuda(cudaStreamSynchronize(stream), "reading device memory");
}

CudaDiagnostics::CudaDiagnostics(const Setup& setup, DevicePool& pool)
    : setup_(setup),
      pool_(pool),
      row_counts_(pool.take(sizeof(kernels::RowCounts), "counts of rows")) {
    check_cuda(cudaMemset(row_counts_.data(), 0, sizeof(kernels::RowCounts)), "clearing counts");
}

void CudaDiagnostics::set(const Diagnostics& diagnostics) {
    check_cuda_diagnostics(diagnostics);
    if (diagnostics.trace_capacity > diagnostics_.trace_capacity) {
        const int64_t record_bytes = sizeof(kernels::TraceRecord);
        trace_ = pool_.take(diagnostics.trace_capacity * record_bytes, "trace");
        check_cuda(cudaMemset(trace_.data(), 0, trace_.bytes()), "clearing a trace");
    }
    diagnostics_ = diagnostics;
}

void CudaDiagnostics::apply(kernels::PassParams& p) const {
    p.disturbance.stall_seed = diagnostics_.stall_seed;
    p.disturbance.lost_task = static_cast<uint32_t>(diagnostics_.lose_arrivals_of + 1);
    p.traced = diagnostics_.trace_capacity > 0;
    p.trace = trace_.at<kernels::TraceRecord>(0);
    p.trace_capacity = static_cast<uint32_t>(diagnostics_.trace_capacity);
}

void CudaDiagnostics::count_rows(const plan::Pass& pass, cudaStream_t stream) const {
    if (!diagnostics_.counts_link_bytes) return;
    check_cuda(kernels::launch_count_rows(pass, row_counts_.at<kernels::RowCounts>(0), stream),
               "counting rows");
}

LinkBytes CudaDiagnostics::link_bytes(cudaStream_t stream) const {
    kernels::RowCounts counts;
    read_device(&counts, row_counts_.data(), sizeof(counts), stream);
    LinkBytes bytes;
    for (int r = 0; r < setup_.group.size(); ++r) {
        bytes.pulled.push_back(static_cast<int64_t>(counts.pulled[r]));
        bytes.pushed.push_back(static_cast<int64_t>(counts.pushed[r]));
    }
    return bytes;
}

std::vector<TracedTask> CudaDiagnostics::trace(uint32_t num_traced, cudaStream_t stream) const {
    std::vector<kernels::TraceRecord> records(
        std::min<int64_t>(num_traced, diagnostics_.trace_capacity));
    if (records.empty()) return {};
    const int64_t bytes = static_cast<int64_t>(records.size() * sizeof(kernels::TraceRecord));
    read_device(records.data(), trace_.data(), bytes, stream);
    std::vector<TracedTask> tasks;
    for (const kernels::TraceRecord& r : records) {
        if (r.end_ns == 0) continue;  // no pass has written it
        tasks.push_back({plan::task_name(r.task.kind), r.task.tile, r.task.part, r.sm, r.begin_ns,
                         r.end_ns, r.multiplied_ns});
    }
    return tasks;
}

}  // namespace mok::layer
