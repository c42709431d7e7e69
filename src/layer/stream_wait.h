#pragma once

#include <chrono>
#include <functional>

// How the host waits for a stream: it looks at it, so that the wait can end before the stream does.
namespace mok::layer {

using WaitTime = std::chrono::steady_clock::time_point;
using WaitDuration = std::chrono::steady_clock::duration;

// What is asked and done at every look. Nothing here waits.
struct StreamLook {
    std::function<bool()> has_ended;     // throws where the stream ended with an error
    std::function<bool()> must_end;      // something is broken: no wait on the device goes on
    std::function<void()> attend_peers;  // what this rank owes the others meanwhile
};

struct WaitBounds {
    WaitDuration after_fault;  // since must_end was seen
    WaitDuration in_all;
};

// How long a kernel may take to wind down after a fault, which takes microseconds.
inline constexpr std::chrono::seconds kWindingDown{10};

// Of a group with this timeout, which bounds each wait on the device: in all four times that, a
// minute at least, for a stream holds many passes and what its owner puts there.
WaitBounds wait_bounds(std::chrono::duration<double> timeout);

enum class WaitEnd { Ended, NotAfterFault, NotInTime };
struct WaitOutcome {
    WaitEnd end;
    std::chrono::duration<double> waited;  // NotAfterFault: since must_end was seen
};

struct WaitClock {
    std::function<WaitTime()> now;
    std::function<void(WaitDuration)> sleep;
};
// std::chrono::steady_clock.
WaitClock steady_wait_clock();

// Looks without a pause for two milliseconds, then ten times a millisecond, until the stream has
// ended or a bound is reached.
WaitOutcome wait_for_stream(const StreamLook& look, const WaitBounds& bounds,
                            const WaitClock& clock = steady_wait_clock());

}  // namespace mok::layer
