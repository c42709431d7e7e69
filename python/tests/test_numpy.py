"""`moe` and the calls below it on NumPy arrays, against the textbook layer."""

import threading

import numpy as np
import pytest

import cases
import openmok
from bounds import assert_total_within_bounds, assert_within_bounds
from textbook import Layer, bf16

SHAPE = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K)
SHARED_SHAPE = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K, cases.S)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_forward_is_the_textbooks(biases, shared):
    x, ids, router = cases.inputs(150)
    weights = cases.weights(biases=biases, shared=shared)
    scale = np.linspace(0, 2, len(x), dtype=np.float32) if shared else None
    out, rows = openmok.moe(x, ids, router, **weights, shared_weights=scale)
    expected = Layer(**cases.library_names(weights)).forward(x, ids, router, scale)
    assert out.dtype == np.float32
    assert_within_bounds("out", out, expected)
    np.testing.assert_array_equal(rows, np.bincount(ids[ids >= 0], minlength=cases.E))


def test_forms_of_the_weights_give_the_same_bits():
    x, ids, router = cases.inputs(70)
    w = cases.weights()
    gate_up, down = w["gate_up"], w["down"]
    whole, _ = openmok.moe(x, ids, router, gate_up, down)
    pair, _ = openmok.moe(x, ids, router, (gate_up[:, : cases.I], gate_up[:, cases.I :]), down)
    lists, _ = openmok.moe(x, ids.astype(np.int32), router, list(gate_up), list(down))
    interleaved = np.empty_like(gate_up)
    interleaved[:, 0::2], interleaved[:, 1::2] = gate_up[:, : cases.I], gate_up[:, cases.I :]
    strided, _ = openmok.moe(x, ids, router, (interleaved[:, 0::2], interleaved[:, 1::2]), down)
    for other in (pair, lists, strided):
        np.testing.assert_array_equal(whole, other)


def test_experts_of_separate_storage_are_refused():
    x, ids, router = cases.inputs(5)
    w = cases.weights()
    separate = [expert.copy() for expert in w["down"]]
    with pytest.raises(openmok.MokShapeError, match="down: expected experts that lie in one st"):
        openmok.moe(x, ids, router, w["gate_up"], separate)


def test_no_tokens():
    x, ids, router = cases.inputs(0)
    out, rows = openmok.moe(x, ids, router, **cases.weights())
    assert out.shape == (0, cases.H)
    np.testing.assert_array_equal(rows, np.zeros(cases.E))


def test_clamped_activation():
    x, ids, router = cases.inputs(40)
    w = cases.weights()
    out, _ = openmok.moe(
        bf16(8 * x), ids, router, **w, activation="gpt-oss", limit=3.0
    )
    expected = np.zeros(x.shape)
    for t, c in np.argwhere(ids >= 0):
        pre = w["gate_up"][ids[t, c]].astype(np.float64) @ bf16(8 * x[t])
        gate = np.minimum(pre[: cases.I], 3.0)
        up = np.clip(pre[cases.I :], -3.0, 3.0)
        hidden = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        expected[t] += router[t, c] * (w["down"][ids[t, c]] @ hidden)
    assert_within_bounds("out", out, expected)


class Call:
    """One call by the explicit interface, on its own tensors."""

    def __init__(self, group, shape, made, x, ids, router, scale=None):
        self.x, self.made = x, made
        self.workspace = openmok.Workspace(group, shape, openmok.Tuning(), max(len(x), 1))
        first, local = self.workspace.first_expert, self.workspace.num_local_experts
        self.own = {
            name: value if name.startswith("shared") else value[first : first + local]
            for name, value in cases.library_names(made).items()
        }
        self.inputs = openmok.Inputs(x=x, topk_weights=router, shared_weights=scale)
        self.schedule = openmok.Schedule(self.workspace, ids)
        self.context = openmok.Context()
        self.saved = (self.schedule, openmok.Weights(**self.own), self.inputs, self.context)
        self.out = np.empty_like(x)

    def forward(self):
        openmok.forward(self.workspace, *self.saved[:3], self.out, self.context)

    def gradients(self):
        """Unwritten gradients of the inputs and of the weights, by name."""
        t = len(self.x)
        d_in = {"x": np.empty_like(self.x), "topk_weights": np.empty((t, cases.K), np.float32)}
        if "shared_down" in self.own:
            d_in["shared_weights"] = np.empty(t, np.float32)
        return d_in, {name: np.empty(v.shape, np.float32) for name, v in self.own.items()}

    def backward(self, d_out, mode=openmok.GradMode.Overwrite):
        d_in, d_w = self.gradients()
        openmok.backward(
            self.workspace,
            self.saved,
            d_out,
            openmok.InputGrads(**d_in),
            openmok.WeightGrads(mode=mode, **d_w),
        )
        return d_in | d_w


def test_gradients_are_the_textbooks_in_one_call_and_in_two():
    x, ids, router = cases.inputs(150)
    scale = np.linspace(0, 2, len(x), dtype=np.float32)
    made = cases.weights(biases=True, shared=True)
    call = Call(openmok.Group.alone(), SHARED_SHAPE, made, x, ids, router, scale)
    d_out = bf16(np.random.default_rng(5).standard_normal(x.shape))
    call.forward()
    found = call.backward(d_out)
    expected = Layer(**cases.library_names(made)).backward(x, ids, router, d_out, scale)
    assert found.keys() == expected.keys()
    for name in found:
        check = assert_total_within_bounds if name == "topk_weights" else assert_within_bounds
        check(name, found[name], expected[name])
    assert (found["topk_weights"][ids < 0] == 0).all()

    d_in, d_w = call.gradients()
    openmok.recompute(call.workspace, *call.saved)
    openmok.backward_input(call.workspace, call.saved, d_out, openmok.InputGrads(**d_in))
    openmok.wgrad(call.workspace, call.saved, d_out, openmok.WeightGrads(**d_w))
    for name, value in (d_in | d_w).items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)

    _, alone = call.gradients()
    shared = {name: alone[name] for name in ("shared_gate", "shared_up", "shared_down")}
    openmok.shared_wgrad(call.workspace, call.saved, d_out, openmok.WeightGrads(**shared))
    for name, value in shared.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)


def run_ranks(groups, work):
    """work(group) on a thread of each rank; what each returned or raised."""
    results = [None] * len(groups)

    def of_rank(group):
        try:
            results[group.rank] = work(group)
        except Exception as error:  # the test looks at it
            results[group.rank] = error

    threads = [threading.Thread(target=of_rank, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_three_ranks_give_the_bits_of_one():
    x, ids, router = cases.inputs(120)
    w = cases.weights()
    expected, rows = openmok.moe(x, ids, router, **w)
    bounds = [0, 40, 40, 120]  # rank 1 has no tokens

    def work(group):
        own = slice(bounds[group.rank], bounds[group.rank + 1])
        experts = slice(2 * group.rank, 2 * group.rank + 2)
        return openmok.moe(
            x[own],
            ids[own],
            router[own],
            w["gate_up"][experts],
            w["down"][experts],
            group=group,
            tuning=openmok.Tuning(max_tokens=80),
        )

    results = run_ranks(openmok.Group.in_process(3, timeout=20), work)
    np.testing.assert_array_equal(np.concatenate([out for out, _ in results]), expected)
    np.testing.assert_array_equal(np.concatenate([own for _, own in results]), rows)


def test_ranks_with_different_numbers_of_experts():
    x, ids, router = cases.inputs(64)
    w = cases.weights()
    expected, _ = openmok.moe(x, ids, router, **w)
    first = [0, 2, 4, 5, 6]

    def work(group):
        own = slice(16 * group.rank, 16 * group.rank + 16)
        experts = slice(first[group.rank], first[group.rank + 1])
        return openmok.moe(
            x[own],
            ids[own],
            router[own],
            w["gate_up"][experts],
            w["down"][experts],
            group=group,
            num_experts=cases.E,
            tuning=openmok.Tuning(max_tokens=16),
        )[0]

    results = run_ranks(openmok.Group.in_process(4, timeout=20), work)
    np.testing.assert_array_equal(np.concatenate(results), expected)


def test_an_absent_rank_is_named():
    x, ids, router = cases.inputs(8)
    w = cases.weights()
    groups = openmok.Group.in_process(2, timeout=0.5)

    def work(group):
        if group.rank == 1:
            return None
        return openmok.moe(
            x,
            ids,
            router,
            w["gate_up"][:3],
            w["down"][:3],
            group=group,
            tuning=openmok.Tuning(max_tokens=8),
        )

    error = run_ranks(groups, work)[0]
    assert isinstance(error, openmok.MokTimeout) and isinstance(error, RuntimeError)
    assert (error.rank, error.peer) == (0, 1)
    assert "rank 1" in str(error)


def test_workspaces_are_shared_and_forgotten():
    x, ids, router = cases.inputs(100)
    w = cases.weights()
    assert openmok.workspace_bytes() == 0
    openmok.moe(x, ids, router, **w)
    once = openmok.workspace_bytes()
    openmok.moe(x[:90], ids[:90], router[:90], **w)
    openmok.moe(x[:128], ids[:128], router[:128], **cases.weights(seed=2))
    assert openmok.workspace_bytes() == once > 0
    openmok.clear_workspaces()
    assert openmok.workspace_bytes() == 0
