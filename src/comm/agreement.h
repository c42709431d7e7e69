#pragma once

#include <string>

#include "openmok/group.h"

namespace mok::comm {

// Collective: throws Error on every rank where some rank has a sentence to say, with that of the
// first one; "": this rank has none. For what can fail on one rank and must not leave the others
// waiting.
void agree(const Group& group, const std::string& sentence, const char* what);

}  // namespace mok::comm
