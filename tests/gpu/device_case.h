#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "arch/tensor_map.h"
#include "cli/common/random_case.h"
#include "kernels/forward.h"
#include "plan/granularity.h"
#include "plan/memory_map.h"

// One forward of a random case on one GPU by any number of virtual ranks, for the GPU tests.
namespace mok_test {

#define MOK_CUDA(call)                                                                            \
    do {                                                                                          \
        const cudaError_t error = (call);                                                         \
        if (error != cudaSuccess) {                                                               \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            std::exit(1);                                                                         \
        }                                                                                         \
    } while (0)

// Device memory that begins as NaN in every type.
class DeviceMemory {
  public:
    DeviceMemory() = default;
    explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
        MOK_CUDA(cudaMalloc(&data_, bytes + 256));
        MOK_CUDA(cudaMemset(data_, 0xff, bytes + 256));
    }
    template <class T>
    explicit DeviceMemory(const std::vector<T>& host) : DeviceMemory(host.size() * sizeof(T)) {
        MOK_CUDA(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    DeviceMemory(DeviceMemory&& o) noexcept
        : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}
    DeviceMemory& operator=(DeviceMemory&& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        return *this;
    }
    ~DeviceMemory() { cudaFree(data_); }
    template <class T>
    T* at(int64_t byte = 0) const {
        return reinterpret_cast<T*>(static_cast<char*>(data_) + byte);
    }
    int64_t bytes() const { return bytes_; }

  private:
    void* data_ = nullptr;
    int64_t bytes_ = 0;
};

struct VirtualRank {
    mok::plan::Problem problem;
    std::vector<int32_t> ids;  // [T, K]
    mok::plan::WindowMap window_map;
    mok::plan::WorkspaceMap map;
    mok::plan::ContextMap context_map;
    DeviceMemory window, local, table, context, out, ids_device, shared_weights;
    DeviceMemory gate, up, down, gate_bias, up_bias, down_bias, control;
    mok::kernels::ForwardParams params;
    mok::kernels::ExpertMaps routed, shared;
    mok::kernels::ReduceParams reduce;
};

struct DeviceOptions {
    int num_ranks = 1;
    mok::Tuning tuning;
    bool saves_context = true;
    int max_sms = 132;
    bool traced = false;
};

// The case's tensors on the device, cut among the ranks, tables built by plan on the host.
class DeviceCase {
  public:
    DeviceCase(const mok::cli::RandomCase& c, const DeviceOptions& options);
    // The whole forward of all ranks on a stream: clears signals, runs every rank's program,
    // reduces.
    void run(cudaStream_t stream);
    // The fault that a rank recorded, or an empty string.
    std::string fault() const;
    std::vector<mok::Bf16> output() const;
    // Gate and up as the contexts hold them, in slot order, real rows only.
    std::vector<mok::Bf16> saved() const;
    const DeviceOptions& options() const { return options_; }
    std::vector<VirtualRank> ranks;
    DeviceMemory shared_gate, shared_up, shared_down;

  private:
    DeviceOptions options_;
    mok::kernels::FaultRecord* fault_ = nullptr;
};

}  // namespace mok_test
