#pragma once

namespace mok::cli {

enum ExitStatus {
    kDone = 0,
    kFailed = 1,
    kBadInput = 2,
    kTimeout = 3,  // a rank that did not come
};

}  // namespace mok::cli
