#include "comm/cuda/nccl_communicator.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "comm/agreement.h"
#include "comm/group_state.h"

namespace mok::comm {
namespace {

using Clock = std::chrono::steady_clock;

std::string words(const NcclApi& api, ncclResult_t result, const char* what) {
    const char* last = api.last_error(nullptr);
    std::string text = std::string("NCCL: ") + what + " failed: " + api.error_string(result);
    if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
    return text;
}

// Rank 0's identity of the communicator, the same on all ranks.
ncclUniqueId shared_id(const Group& group, const NcclApi& api) {
    ncclUniqueId id{};
    std::string sentence;
    if (group.rank() == 0) {
        const ncclResult_t result = api.get_unique_id(&id);
        if (result != ncclSuccess) sentence = words(api, result, "making an identity");
    }
    agree(group, sentence, "identity of NCCL");
    const auto all = group.state().exchange_bytes(
        group.rank(), std::as_bytes(std::span(id.internal)), "identity of NCCL");
    std::memcpy(id.internal, all[0].data(), sizeof(id.internal));
    return id;
}

}  // namespace

void demand_nccl(const NcclApi& api, ncclResult_t result, const char* what) {
    if (result != ncclSuccess) throw Error(words(api, result, what));
}

NcclCommunicator::NcclCommunicator(const Group& group, std::shared_ptr<const NcclApi> api)
    : group_(group), api_(std::move(api)) {
    const ncclUniqueId id = shared_id(group_, *api_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = api_->comm_init(&comm_, group_.size(), id, group_.rank(), &config);
    try {
        finish(result, "starting");
    } catch (...) {
        if (comm_ != nullptr) api_->comm_abort(comm_);
        throw;
    }
}

NcclCommunicator::~NcclCommunicator() {
    if (!group_.state().broken()) {
        try {
            finish(api_->comm_finalize(comm_), "ending");
            api_->comm_destroy(comm_);
            return;
        } catch (const Error& e) {
            std::fprintf(stderr, "mok: rank %d: %s\n", group_.rank(), e.what());
        }
    }
    api_->comm_abort(comm_);
}

void NcclCommunicator::fail(const std::string& sentence) const {
    group_.state().break_group(sentence, group_.rank());
    group_.state().throw_if_broken(group_.rank());
}

void NcclCommunicator::finish(ncclResult_t result, const char* what) const {
    const GroupOptions& options = group_.state().options();
    const auto start = Clock::now();
    bool was_warned = false;
    const std::string who = "rank " + std::to_string(group_.rank());
    while (result == ncclSuccess || result == ncclInProgress) {
        ncclResult_t state = ncclSuccess;
        result = api_->comm_state(comm_, &state);
        if (result == ncclSuccess && state == ncclSuccess) return;
        if (result == ncclSuccess) result = state;
        if (result != ncclInProgress) break;
        group_.state().throw_if_broken(group_.rank());
        const std::chrono::duration<double> waited = Clock::now() - start;
        char seconds[32];
        std::snprintf(seconds, sizeof(seconds), "%.1f s", waited.count());
        if (waited > options.timeout) {
            fail(who + " waited " + seconds + " for NCCL's " + what +
                 " and it did not end; the group is broken");
        }
        if (waited > options.warn_after && !was_warned) {
            std::fprintf(stderr, "mok: %s has waited %s for NCCL's %s\n", who.c_str(), seconds,
                         what);
            was_warned = true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    fail(who + ": " + words(*api_, result, what) + "; the group is broken");
}

}  // namespace mok::comm
