#pragma once

#include <gtest/gtest.h>

#include "plan/program.h"
#include "plan/signals.h"

namespace mok::plan::fixture {

inline constexpr PassKind kPassKinds[] = {PassKind::Forward, PassKind::Recompute,
                                          PassKind::Backward, PassKind::BackwardInput,
                                          PassKind::Wgrad};

template <class Visitor>
void for_each_pass(const Problem& p, const RouteTable& table, Visitor&& visit) {
    for (const PassKind kind : kPassKinds) {
        SCOPED_TRACE(testing::Message() << "pass kind " << static_cast<int>(kind));
        visit(Pass{kind, p, table});
        if (testing::Test::HasFatalFailure()) return;
    }
}

}  // namespace mok::plan::fixture
