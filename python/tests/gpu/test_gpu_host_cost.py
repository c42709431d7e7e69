"""What a call costs the host: it is enqueued, not waited for."""

import time

import pytest

torch = pytest.importorskip("torch")

from gpu_cases import arguments, d_out_of, without_grads
import openmok
from openmok import _calls


class Stopwatch:
    """Adds up the seconds inside functions of a module that it stands in for."""

    def __init__(self, monkeypatch, module, names):
        self.seconds = dict.fromkeys(names, 0.0)
        for name in names:
            monkeypatch.setattr(module, name, self._timed(name, getattr(module, name)))

    def _timed(self, name, call):
        def timed(*arguments, **options):
            start = time.perf_counter()
            result = call(*arguments, **options)
            self.seconds[name] += time.perf_counter() - start
            return result

        return timed


def microseconds(call, times=300):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    passed = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * passed / times


class Library:
    """The extension as openmok._calls sees it, with calls that a test may replace."""

    def __init__(self, core):
        self.forward, self.backward, self.Schedule = core.forward, core.backward, core.Schedule
        self._core = core

    def __getattr__(self, name):
        return getattr(self._core, name)


def test_what_a_call_costs_the_host(monkeypatch):
    made = arguments(128)
    d_out = d_out_of(made)

    def step():
        openmok.moe(**without_grads(made))[0].backward(d_out)

    def inference():
        with torch.no_grad():
            openmok.moe(**made)

    costs = {}
    for name, call in (("training step", step), ("inference", inference)):
        microseconds(call, 30)
        costs[name] = microseconds(call)
    library = Library(_calls._core)
    monkeypatch.setattr(_calls, "_core", library)
    for name, call in (("training step", step), ("inference", inference)):
        with monkeypatch.context() as patch:
            watch = Stopwatch(patch, library, ("forward", "backward"))
            microseconds(call, 300)
        parts = ", ".join(f"{part} {1e6 * s / 300:.0f}" for part, s in watch.seconds.items() if s)
        print(f"host: {name} {costs[name]:.0f} us, of it in the extension: {parts}")
        assert costs[name] < 2000
