#pragma once

#include <functional>
#include <vector>

#include "openmok/group.h"

namespace mok::cli {

// Ranks as threads of this process: on the CPU, or sharing a GPU.
std::vector<Group> make_groups(const Device& device, int num_ranks, const GroupOptions& options);

// Runs body(group) for every rank in a thread of its own and waits for all. A rank whose body
// throws is declared dead, so that the others end too (InjectedDeath excepted: it dies without a
// word). Then throws what the first rank threw whose error was its own, else what the first one
// threw.
void run_ranks(const std::vector<Group>& groups, const std::function<void(const Group&)>& body);

// Rank barrier between phases of a body: returns when every rank has called it; what any of them
// wrote before is then visible to all. Throws TimeoutError where one of them failed or did not come
// within the group's bound; `what` names the barrier in the sentence.
void meet(const Group& group, const char* what);

}  // namespace mok::cli
