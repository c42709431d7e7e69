#include "layer/stream_wait.h"

#include <algorithm>
#include <optional>
#include <thread>

namespace mok::layer {
namespace {

constexpr std::chrono::milliseconds kBusyWait{2};
constexpr std::chrono::microseconds kLookEvery{100};
constexpr std::chrono::seconds kLeastInAll{60};
constexpr int kTimeoutsInAll = 4;

}  // namespace

WaitBounds wait_bounds(std::chrono::duration<double> timeout) {
    const auto in_all = std::chrono::duration_cast<WaitDuration>(kTimeoutsInAll * timeout);
    return {kWindingDown, std::max<WaitDuration>(kLeastInAll, in_all)};
}

WaitClock steady_wait_clock() {
    return {std::chrono::steady_clock::now,
            [](WaitDuration pause) { std::this_thread::sleep_for(pause); }};
}

WaitOutcome wait_for_stream(const StreamLook& look, const WaitBounds& bounds,
                            const WaitClock& clock) {
    const WaitTime start = clock.now();
    std::optional<WaitTime> failing_since;
    while (!look.has_ended()) {
        look.attend_peers();
        const WaitTime now = clock.now();
        if (!failing_since && look.must_end()) failing_since = now;
        if (failing_since && now - *failing_since >= bounds.after_fault) {
            return {WaitEnd::NotAfterFault, now - *failing_since};
        }
        if (now - start >= bounds.in_all) return {WaitEnd::NotInTime, now - start};
        if (now - start > kBusyWait) clock.sleep(kLookEvery);
    }
    return {WaitEnd::Ended, clock.now() - start};
}

}  // namespace mok::layer
