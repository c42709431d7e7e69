#pragma once

#include <memory>

#include "comm/cuda/nccl_api.h"
#include "openmok/group.h"

namespace mok::comm {

// NCCL's communicator over a group, of the current device of each rank. It does not block: every
// call that waits for other ranks is waited for here, within the group's timeout, and ends at once
// when the group breaks. A failure breaks the group, so that the others do not wait in vain.
class NcclCommunicator {
  public:
    // Collective.
    NcclCommunicator(const Group& group, std::shared_ptr<const NcclApi> api);
    // Abandons what is under way when the group is broken; otherwise ends in peace.
    ~NcclCommunicator();
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;

    ncclComm_t get() const { return comm_; }
    const NcclApi& api() const { return *api_; }

    // What a call on the communicator has returned: waits for its end. `what` names it in
    // sentences. What the call writes is there afterwards, and must stay in place until then.
    void finish(ncclResult_t result, const char* what) const;

  private:
    void fail(const std::string& sentence) const;

    Group group_;
    std::shared_ptr<const NcclApi> api_;
    ncclComm_t comm_ = nullptr;
};

// Throws Error with NCCL's own words where a call that waits for nobody has failed.
void demand_nccl(const NcclApi& api, ncclResult_t result, const char* what);

}  // namespace mok::comm
