#include "comm/cuda/device_memory.h"

#include "comm/agreement.h"
#include "comm/cuda/runtime.h"
#include "comm/group_state.h"

namespace mok::comm {
namespace {

struct Window {
    int device = -1;
    std::shared_ptr<std::byte> data;
};

// On an error the sentence says it and the window is empty.
Window allocate(int64_t bytes, std::string& sentence) {
    Window window;
    try {
        void* data = nullptr;
        demand_cuda(cudaGetDevice(&window.device), "asking for the current device");
        demand_cuda(cudaMalloc(&data, bytes), "allocating a window");
        window.data = {static_cast<std::byte*>(data), [](std::byte* p) { cudaFree(p); }};
        demand_cuda(cudaMemset(data, 0, bytes), "clearing a window");
        demand_cuda(cudaDeviceSynchronize(), "clearing a window");
    } catch (const Error& e) {
        sentence = e.what();
    }
    return window;
}

class DeviceMemory final : public PeerMemory {
  public:
    DeviceMemory(const Group& group, int64_t bytes) : PeerMemory(bytes) {
        std::string sentence;
        const Window own = allocate(bytes, sentence);
        agree(group, sentence, "allocation of windows");
        group.state().exchange(group.rank(), &own, "exchange of windows", [this](const auto& all) {
            for (const void* of_rank : all) {
                windows_.push_back(*static_cast<const Window*>(of_rank));
                bases_.push_back(windows_.back().data.get());
            }
        });
        for (std::size_t r = 1; r < windows_.size(); ++r) {
            if (windows_[r].device == windows_[0].device) continue;
            throw Error("ranks of one process: expected one GPU, found GPU " +
                        std::to_string(windows_[0].device) + " of rank 0 and GPU " +
                        std::to_string(windows_[r].device) + " of rank " + std::to_string(r));
        }
    }

  private:
    std::vector<Window> windows_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_device_memory(const Group& group, int64_t bytes) {
    return std::make_unique<DeviceMemory>(group, bytes);
}

}  // namespace mok::comm
