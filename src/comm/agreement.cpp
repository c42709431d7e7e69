#include "comm/agreement.h"

#include "comm/group_state.h"

namespace mok::comm {

void agree(const Group& group, const std::string& sentence, const char* what) {
    const auto mine = std::as_bytes(std::span(sentence));
    for (const Bytes& said : group.state().exchange_bytes(group.rank(), mine, what)) {
        if (said.empty()) continue;
        throw Error(std::string(reinterpret_cast<const char*>(said.data()), said.size()));
    }
}

}  // namespace mok::comm
