"""What a call costs the host, in microseconds: python host_cost.py. Prints a table; judges nothing.

A call is enqueued, not waited for. Calls are timed in bursts that a GPU's queue holds, the fastest
of many bursts counts. Below the calls of `openmok.moe` stand what torch itself takes for less: an
operator of torch.library that only allocates its result, an autograd.Function with the same inputs
and gradients that only allocates, and one kernel of torch's.
"""

import time

import torch

from gpu_cases import arguments, d_out_of
import openmok
from openmok import _calls
from test_torch import leaves

BURST, BURSTS = 12, 60


def seconds_of(call, prepare=lambda: None):
    """Of one call; prepare runs before each, outside the clock."""
    best = float("inf")
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        taken = 0.0
        for _ in range(BURST):
            made = prepare()
            start = time.perf_counter()
            call() if made is None else call(made)
            taken += time.perf_counter() - start
            del made
        best = min(best, taken / BURST)
    torch.cuda.synchronize()
    return best


class InExtension:
    """The extension as openmok._calls sees it, whose calls are timed."""

    def __init__(self, core):
        self._core, self.seconds = core, {}

    def __getattr__(self, name):
        found = getattr(self._core, name)
        if not name.startswith("moe_"):
            return found

        def timed(*arguments):
            start = time.perf_counter()
            try:
                return found(*arguments)
            finally:
                passed = time.perf_counter() - start
                self.seconds[name] = min(self.seconds.get(name, 1.0), passed)

        return timed


@torch.library.custom_op("openmok_test::nothing", mutates_args=())
def nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Bare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx, d_out):
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors)


def row(name, seconds, more=""):
    print(f"{name:<44}{1e6 * seconds:>8.1f}  {more}")


def main():
    made = arguments(128)
    d_out = d_out_of(made)
    trained = list(leaves(made).values())

    def forget():
        for leaf in trained:
            leaf.grad = None

    def forward():
        return openmok.moe(**made)[0]

    def inference():
        with torch.no_grad():
            openmok.moe(**made)


    def output():
        forget()
        return forward()

    forward().backward(d_out)
    print(f"{'host, microseconds a call':<44}{'all':>8}  of it in the extension")
    core = _calls._core
    for name, call, prepare, entry in (
        ("moe, no_grad", inference, lambda: None, "moe_forward"),
        ("moe, with gradients", forward, lambda: None, "moe_forward"),
        ("its backward", lambda out: out.backward(d_out), output, "moe_backward"),
    ):
        whole = seconds_of(call, prepare)
        _calls._core = watch = InExtension(core)
        seconds_of(call, prepare)
        _calls._core = core
        inside = watch.seconds.get(entry)
        row(name, whole, f"{1e6 * inside:.1f}" if inside else "")
    forget()
    for name, weight in made.items():
        if name in ("gate_up", "down"):
            weight.main_grad = torch.zeros(weight.shape, dtype=torch.float32, device="cuda")
    row("its backward, into main_grad", seconds_of(lambda out: out.backward(d_out), output))

    x = made["x"].detach()
    print()
    row("an operator that allocates", seconds_of(lambda: nothing(x)))
    row("autograd.Function, forward", seconds_of(lambda: Bare.apply(*trained)))

    def bare():
        forget()
        return Bare.apply(*trained)

    row("autograd.Function, backward", seconds_of(lambda out: out.backward(d_out), bare))
    row("one kernel of torch", seconds_of(lambda: x.zero_()))
    print()
    print_api_calls(lambda: forward().backward(d_out))


def print_api_calls(step, steps=20):
    """CUDA's calls of a training step, with the time that each takes under a profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            step()
    torch.cuda.synchronize()
    print(f"{'CUDA calls of a training step':<44}{'calls':>8}  microseconds each")
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total):
        if event.key.startswith("cu"):
            each = event.self_cpu_time_total / event.count
            print(f"{event.key:<44}{event.count / steps:>8.1f}  {each:.2f}")


if __name__ == "__main__":
    main()
