"""What a call costs the host, in microseconds: python host_cost.py. Prints a table; judges nothing.

A call is enqueued, not waited for. Calls are timed in bursts that a GPU's queue holds, in turn with
what is compared with them; the fastest of many bursts counts. Below the calls of `openmok.moe`
stands what torch itself takes for less, with the same inputs, saved tensors and gradients: an
autograd.Function that only allocates, operators of torch.library with an autograd formula that only
allocate (what the layer is in a compiled graph), one kernel of torch's.
"""

import time

import torch

from gpu_cases import arguments, d_out_of
import openmok
from openmok import _calls
from test_torch import leaves

BURST, BURSTS = 12, 60


class Timed:
    """A call and the fastest of its bursts. prepare runs before each call, outside the clock; what
    it returns is the call's argument."""

    def __init__(self, name, call, prepare=None):
        self.name, self.call, self.prepare = name, call, prepare
        self.seconds = float("inf")

    def burst(self):
        torch.cuda.synchronize()
        taken = 0.0
        for _ in range(BURST):
            made = self.prepare() if self.prepare else None
            start = time.perf_counter()
            self.call(made) if self.prepare else self.call()
            taken += time.perf_counter() - start
            del made
        self.seconds = min(self.seconds, taken / BURST)


def in_turn(*calls):
    """Bursts of each call one after the other, again and again: what slows the machine down for a
    while slows all of them."""
    for _ in range(BURSTS):
        for call in calls:
            call.burst()
    torch.cuda.synchronize()
    return [call.seconds for call in calls]


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
def nothing(x: torch.Tensor, topk_weights: torch.Tensor, gate_up: torch.Tensor,
            down: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("openmok_test::nothing_backward", mutates_args=())
def nothing_backward(d_out: torch.Tensor, saved: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(t) for t in saved]


nothing.register_autograd(
    lambda ctx, d_out: tuple(nothing_backward(d_out, list(ctx.saved_tensors))),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Bare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx, d_out):
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors)


def row(name, seconds, more=""):
    print(f"{name:<36}{1e6 * seconds:>8.1f}   {more}")


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

    def bare():
        forget()
        return Bare.apply(*trained)

    def backward(out):
        out.backward(d_out)

    def operator():
        forget()
        return nothing(*trained)

    forward().backward(d_out)
    x = made["x"].detach()
    calls = (
        Timed("moe, no_grad", inference),
        Timed("moe, with gradients", forward),
        Timed("its backward", backward, output),
        Timed("autograd.Function, forward", lambda: Bare.apply(*trained)),
        Timed("autograd.Function, backward", backward, bare),
        Timed("operators with autograd, forward", lambda: nothing(*trained)),
        Timed("operators with autograd, backward", backward, operator),
        Timed("one kernel of torch", lambda: x.zero_()),
    )
    seconds = in_turn(*calls)
    core = _calls._core
    _calls._core = watch = InExtension(core)
    inside = []
    for call, entry in zip(calls, ("moe_forward", "moe_forward", "moe_backward")):
        watch.seconds.clear()
        for _ in range(BURSTS):
            call.burst()
        inside.append(watch.seconds[entry])
    _calls._core = core
    print(f"{'host, microseconds a call':<36}{'all':>8}{'extension':>11}{'above torch':>13}")
    torchs_own = 0.0, seconds[3], seconds[4]
    for call, whole, part, bare_one in zip(calls, seconds, inside, torchs_own):
        row(call.name, whole, f"{1e6 * part:>8.1f}{1e6 * (whole - bare_one):>13.1f}")
    for call, whole in zip(calls[3:], seconds[3:]):
        row(call.name, whole)
    for name in ("gate_up", "down"):
        made[name].main_grad = torch.zeros(made[name].shape, dtype=torch.float32, device="cuda")
    row("its backward, into main_grad", *in_turn(Timed("", backward, output)))
    for name in ("gate_up", "down"):
        del made[name].main_grad
    print("by themselves, in turn with torch's own alone")
    pairs = (
        (Timed("moe, no_grad", inference), None),
        (Timed("moe, with gradients", forward), Timed("", lambda: Bare.apply(*trained))),
        (Timed("its backward", backward, output), Timed("", backward, bare)),
    )
    for call, bare_call in pairs:
        whole, *others = in_turn(*[c for c in (call, bare_call) if c])
        row(call.name, whole, f"{'':>8}{1e6 * (whole - sum(others)):>13.1f}")
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
