#include <cstdlib>
#include <cstring>
#include <new>

#include "comm/group_state.h"
#include "comm/peer_memory.h"

namespace mok::comm {
namespace {

constexpr std::size_t kPage = 4096;

std::shared_ptr<std::byte> allocate(int64_t bytes) {
    const std::size_t size = (static_cast<std::size_t>(bytes) + kPage) / kPage * kPage;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, size);
    return {data, [](std::byte* p) { std::free(p); }};
}

class HostMemory final : public PeerMemory {
  public:
    HostMemory(const Group& group, int64_t bytes) : PeerMemory(bytes) {
        const std::shared_ptr<std::byte> own = allocate(bytes);
        group.state().exchange(group.rank(), &own, "exchange of windows", [this](const auto& all) {
            for (const void* of_rank : all) {
                windows_.push_back(*static_cast<const std::shared_ptr<std::byte>*>(of_rank));
                bases_.push_back(windows_.back().get());
            }
        });
    }

  private:
    std::vector<std::shared_ptr<std::byte>> windows_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_host_memory(const Group& group, int64_t bytes) {
    return std::make_unique<HostMemory>(group, bytes);
}

}  // namespace mok::comm
