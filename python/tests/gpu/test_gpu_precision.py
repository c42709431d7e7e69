"""`precision` of `moe` on one GPU: near the CPU backend's results; what is not there is refused."""

import pytest

torch = pytest.importorskip("torch")

from gpu_cases import arguments, d_out_of, without_grads
import openmok
from test_torch import grads, leaves

FP8 = pytest.mark.parametrize("precision", ["fp8_block", "mxfp8"])
# Hopper's tensor cores keep some 13 bits of a sum of E4M3 products (docs/precision.md).
BOUND = 1.2e-2


def on_cpu(made):
    def one(t):
        return t.detach().cpu().requires_grad_(t.requires_grad)

    return {n: tuple(map(one, v)) if isinstance(v, tuple) else one(v) for n, v in made.items()}


def unless_refused(call):
    """What it returns; a skipped test, with the library's sentence, where the backend has none."""
    try:
        return call()
    except openmok.MokShapeError as error:
        sentence = str(error)
        assert sentence.startswith("shape.precision: expected"), sentence
        pytest.skip(sentence)


def error_of(found, expected):
    found, expected = found.detach().cpu().double(), expected.detach().double()
    return ((found - expected).norm() / expected.norm()).item()


@FP8
@pytest.mark.parametrize("more", [{}, {"shared": True, "biases": True}])
def test_output_is_near_the_cpus(precision, more):
    made = arguments(**more)
    with torch.no_grad():
        found, rows = unless_refused(lambda: openmok.moe(**made, precision=precision))
        expected, expected_rows = openmok.moe(**on_cpu(made), precision=precision)
        in_bf16, _ = openmok.moe(**made)
    assert torch.equal(rows.cpu(), expected_rows)
    assert error_of(found, expected) < BOUND
    assert error_of(in_bf16, expected) > 2 * BOUND  # another recipe would be seen


@FP8
def test_gradients_are_near_the_cpus(precision):
    made = arguments()
    d_out = d_out_of(made)
    out, _ = unless_refused(lambda: openmok.moe(**made, precision=precision))
    out.backward(d_out)
    other = on_cpu(made)
    openmok.moe(**other, precision=precision)[0].backward(d_out.cpu())
    for name, expected in grads(other).items():
        assert error_of(leaves(made)[name].grad, expected) < 2 * BOUND, name


@FP8
def test_a_replay_quantises_the_weights_of_its_time(precision):
    made = arguments()
    changed = arguments(seed=5)
    with torch.no_grad():
        first, _ = unless_refused(lambda: openmok.moe(**made, precision=precision))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, _ = openmok.moe(**made, precision=precision)
        graph.replay()
        assert torch.equal(out, first)
        for name in ("gate_up", "down"):
            made[name].data.copy_(changed[name])  # as an optimizer inside of a graph would
        graph.replay()
        right, _ = openmok.moe(**(made | {n: changed[n] for n in ("gate_up", "down")}),
                               precision=precision)
        assert torch.equal(out, right) and not torch.equal(out, first)
        assert torch.equal(openmok.moe(**made, precision=precision)[0], right)


@FP8
def test_weights_are_quantised_once_between_two_steps(precision):
    made = arguments()
    with torch.no_grad():
        unless_refused(lambda: openmok.moe(**without_grads(made), precision=precision))
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            openmok.moe(**made, precision=precision)
            torch.cuda.synchronize()
        names = [e.key for e in profile.key_averages() if "quantise_weights" in e.key]
        assert names == []
        made["down"].mul_(2)
        doubled, _ = openmok.moe(**made, precision=precision)
        fresh = made | {"down": made["down"].detach().clone()}
        assert torch.equal(doubled, openmok.moe(**fresh, precision=precision)[0])
