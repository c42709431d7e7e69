#include "comm/cuda/nccl_memory.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>

#include "comm/agreement.h"
#include "comm/cuda/nccl_communicator.h"
#include "comm/cuda/runtime.h"
#include "comm/cuda/window_pointers.h"
#include "comm/group_state.h"

namespace mok::comm {
namespace {

// Where a rank's device is: equal for two ranks that were given the same one.
struct Place {
    std::array<char, 64> host{};
    std::array<char, 32> pci_bus{};

    bool operator==(const Place&) const = default;
};

// Runs what may fail on this rank alone; then all ranks go on, or all throw the same sentence.
void together(const Group& group, const char* what, const std::function<void()>& step) {
    std::string sentence;
    try {
        step();
    } catch (const TimeoutError&) {
        throw;  // the group is broken, and the others know
    } catch (const Error& e) {
        sentence = "rank " + std::to_string(group.rank()) + ": " + e.what();
    }
    agree(group, sentence, what);
}

Place own_place() {
    Place place;
    int device = 0;
    gethostname(place.host.data(), place.host.size() - 1);
    demand_cuda(cudaGetDevice(&device), "asking for the current device");
    demand_cuda(cudaDeviceGetPCIBusId(place.pci_bus.data(), place.pci_bus.size(), device),
                "asking for the device's PCI bus");
    return place;
}

// Another rank's device that this process can see must be another one, and within reach.
void check_reach(const Group& group, const std::vector<Place>& places) {
    const Place& own = places[group.rank()];
    int own_device = 0;
    demand_cuda(cudaGetDevice(&own_device), "asking for the current device");
    for (int r = 0; r < group.size(); ++r) {
        if (r == group.rank() || places[r].host != own.host) continue;
        const std::string other = "rank " + std::to_string(r);
        if (places[r] == own) {
            throw Error("expected a GPU of its own, found GPU " + std::string(own.pci_bus.data()) +
                        " which " + other + " has too");
        }
        int device = -1, can_access = 0;
        if (cudaDeviceGetByPCIBusId(&device, places[r].pci_bus.data()) != cudaSuccess) {
            cudaGetLastError();  // not visible here: NCCL finds out
            continue;
        }
        demand_cuda(cudaDeviceCanAccessPeer(&can_access, own_device, device),
                    "asking for peer access");
        if (can_access == 0) {
            throw Error("GPU " + std::string(own.pci_bus.data()) + " cannot access GPU " +
                        places[r].pci_bus.data() + " of " + other);
        }
    }
}

void check_places(const Group& group) {
    Place own;
    together(group, "places of the GPUs", [&] { own = own_place(); });
    std::vector<Place> places(group.size());
    const auto all = group.state().exchange_bytes(group.rank(), std::as_bytes(std::span(&own, 1)),
                                                  "places of the GPUs");
    for (int r = 0; r < group.size(); ++r) std::memcpy(&places[r], all[r].data(), sizeof(Place));
    together(group, "reach of the GPUs", [&] { check_reach(group, places); });
}

class NcclMemory final : public PeerMemory {
  public:
    NcclMemory(const Group& group, std::shared_ptr<const NcclApi> api, int64_t bytes)
        : PeerMemory(bytes), group_(group), api_(std::move(api)), comm_(group, api_) {}

    // Outside the constructor, so that the destructor takes down what exists.
    void make() {
        together(group_, "allocation of windows", [this] {
            void* data = nullptr;
            demand_nccl(*api_, api_->mem_alloc(&data, bytes_), "allocating a window");
            own_.reset(data);
            demand_cuda(cudaMemset(data, 0, bytes_), "clearing a window");
            demand_cuda(cudaDeviceSynchronize(), "clearing a window");
        });
        comm_.finish(api_->window_register(comm_.get(), own_.get(), bytes_, &window_,
                                           NCCL_WIN_COLL_SYMMETRIC),
                     "registering of windows");
        together(group_, "registering of windows", [this] {
            if (window_ == nullptr) {
                throw Error(
                    "NCCL: expected a symmetric window of this device's memory, found none");
            }
        });
        check_team();
        together(group_, "addresses of windows", [this] { find_bases(); });
    }

    // Where the group is broken the others may be gone: what is collective is left out, and the
    // communicator abandoned.
    ~NcclMemory() override {
        cudaDeviceSynchronize();
        try {
            if (window_ != nullptr && !group_.state().broken()) {
                comm_.finish(api_->window_deregister(comm_.get(), window_), "giving up of windows");
            }
        } catch (const Error&) {
            // The group is broken and keeps the sentence.
        }
    }

  private:
    // The device's communicator says which ranks loads and stores reach; nothing else needs it.
    void check_team() {
        ncclDevCommRequirements requirements{};
        requirements.lsaBarrierCount = 1;
        comm_.finish(api_->dev_comm_create(comm_.get(), &requirements, &dev_comm_),
                     "making of the device's communicator");
        together(group_, "reach of NCCL", [this] {
            if (dev_comm_.lsaSize == group_.size() && dev_comm_.lsaRank == group_.rank()) return;
            throw Error("NCCL: expected all " + std::to_string(group_.size()) +
                        " ranks within reach of loads and stores (one NVLink domain), found " +
                        std::to_string(dev_comm_.lsaSize));
        });
        comm_.finish(api_->dev_comm_destroy(comm_.get(), &dev_comm_),
                     "ending of the device's communicator");
    }

    void find_bases() {
        const std::size_t size = sizeof(void*) * group_.size();
        void** pointers = nullptr;
        demand_cuda(cudaMallocManaged(reinterpret_cast<void**>(&pointers), size),
                    "allocating the windows' addresses");
        const std::unique_ptr<void, void (*)(void*)> owner(pointers, [](void* p) { cudaFree(p); });
        demand_cuda(launch_window_pointers(window_, group_.size(), pointers, nullptr),
                    "asking for the windows' addresses");
        demand_cuda(cudaDeviceSynchronize(), "asking for the windows' addresses");
        for (int r = 0; r < group_.size(); ++r) {
            bases_.push_back(static_cast<std::byte*>(pointers[r]));
            if (pointers[r] == nullptr) {
                throw Error("NCCL: expected the address of rank " + std::to_string(r) +
                            "'s window, found none");
            }
        }
    }

    Group group_;
    std::shared_ptr<const NcclApi> api_;
    // The communicator ends before the memory that it knows.
    std::unique_ptr<void, ncclResult_t (*)(void*)> own_{nullptr, api_->mem_free};
    NcclCommunicator comm_;
    ncclWindow_t window_ = nullptr;
    ncclDevComm dev_comm_{};
};

// NCCL, after every rank has it and every GPU is its rank's own and within reach.
std::shared_ptr<const NcclApi> checked_nccl(const Group& group) {
    if (group.size() > 1 && group.state().is_one_process()) {
        throw Error("windows by NCCL: expected a process per rank, found " +
                    std::to_string(group.size()) + " ranks in one");
    }
    std::shared_ptr<const NcclApi> api;
    together(group, "opening of NCCL", [&] { api = std::make_shared<NcclApi>(); });
    check_places(group);
    return api;
}

}  // namespace

void require_nccl_windows(const Group& group) {
    checked_nccl(group);
}

std::unique_ptr<PeerMemory> make_nccl_memory(const Group& group, int64_t bytes) {
    auto memory = std::make_unique<NcclMemory>(group, checked_nccl(group), bytes);
    memory->make();
    return memory;
}

}  // namespace mok::comm
