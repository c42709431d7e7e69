"""Calls with the weights of an earlier one are not read again, and are right all the same."""

import gc
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from openmok import _calls, _known
from test_torch import arguments, assert_same_bits, d_out_of, grads, leaves, plain_layer, trained


def calls():
    return list(_known._calls.values())


def fresh(made):
    """The same as tensors that no call has seen."""
    copies = {}
    for name, value in made.items():
        of_one = lambda t: t.detach().clone().requires_grad_(t.requires_grad)
        copies[name] = tuple(map(of_one, value)) if isinstance(value, tuple) else of_one(value)
    return copies


def assert_like_a_first_call(made, **options):
    out, rows = openmok.moe(**made, **options)
    expected, expected_rows = openmok.moe(**fresh(made), **options)
    assert torch.equal(out, expected) and torch.equal(rows, expected_rows)


@pytest.mark.parametrize("more", [{}, {"biases": True}, {"biases": True, "shared": True}])
def test_a_second_call_has_the_bits_of_the_first(more, monkeypatch):
    made = arguments(**more)
    halves = [half.requires_grad_() for half in made["gate_up"].detach().split(cases.I, 1)]
    for form in (made, made | {"gate_up": tuple(halves)}):
        for leaf in leaves(form).values():
            leaf.grad = None
        d_out = d_out_of(form)
        openmok.moe(**form)  # the very first call imports
        expected_out, expected = trained(form, d_out)
        assert len(calls()) > 0
        for leaf in leaves(form).values():
            leaf.grad = None
        with monkeypatch.context() as patch:
            # Nothing is looked into once more.
            patch.setattr(_calls, "_call_plan_of", None)
            patch.setattr(openmok._functional, "weights_of", None)
            out, found = trained(form, d_out)
        assert torch.equal(out, expected_out)
        assert_same_bits(found, expected)


def test_another_number_of_choices_options_and_types_of_tensors():
    made = arguments()
    openmok.moe(**made)
    fewer = {"topk_ids": made["topk_ids"][:, :2], "topk_weights": made["topk_weights"][:, :2]}
    assert_like_a_first_call(made | {k: v.detach() for k, v in fewer.items()})
    for options in (
        {"limit": 0.5},
        {"activation": "gpt-oss"},
        {"tuning": openmok.Tuning(macrobatch_rows=256)},
        {"group": openmok.Group.alone()},
        {"num_experts": cases.E},
        {"precision": "mxfp8"},
        {},
    ):
        assert_like_a_first_call(made, **options)
    assert_like_a_first_call(made | {"topk_ids": made["topk_ids"].int()})
    assert_like_a_first_call(made | {"x": made["x"].detach().bfloat16()})
    assert_like_a_first_call(made | {"topk_weights": made["topk_weights"].detach().bfloat16()})
    assert_like_a_first_call(made | {"topk_ids": made["topk_ids"].t().contiguous().t()})
    assert_like_a_first_call({n: v[:7] if n in ("x", "topk_ids", "topk_weights") else v
                              for n, v in made.items()})


def test_what_is_wrong_is_said_as_in_a_first_call():
    made = arguments()
    openmok.moe(**made)
    for change, sentence in (
        ({"x": made["x"].detach().double()}, "x: expected dtype torch.bfloat16 or torch.float32"),
        ({"x": made["x"].detach()[:, :56]}, r"gate: expected shape \[6, 40, 56\]"),
        ({"topk_ids": made["topk_ids"].float()}, "topk_ids: expected dtype torch.int64"),
        ({"topk_ids": made["topk_ids"][:5]}, r"topk_ids: expected shape \[100, K\]"),
        ({"precision": "fp4"}, "precision: expected"),
        ({"activation": "relu"}, "activation: expected"),
    ):
        with pytest.raises(openmok.MokShapeError, match=sentence):
            openmok.moe(**(made | change))


def test_weights_of_another_shape_in_the_same_parameter():
    made = arguments()
    openmok.moe(**made)
    made["gate_up"].data = made["gate_up"].data[:, :48].contiguous()
    made["down"].data = made["down"].data[:, :, :24].contiguous()
    out, _ = openmok.moe(**made)
    expected = plain_layer(**{n: t.detach().double() if t.is_floating_point() else t
                              for n, t in made.items()})
    assert (out.double() - expected).norm() < 4e-3 * expected.norm()


def test_gradients_follow_what_is_asked_for_now():
    made = arguments()
    out, _ = openmok.moe(**made)
    assert out.requires_grad
    for leaf in leaves(made).values():
        leaf.requires_grad_(False)
    assert not openmok.moe(**made)[0].requires_grad
    made["down"].requires_grad_()
    openmok.moe(**made)[0].sum().backward()
    assert made["down"].grad is not None and made["gate_up"].grad is None
    with torch.no_grad():
        assert not openmok.moe(**made)[0].requires_grad


def test_what_is_known_goes_with_the_weights_and_with_the_workspaces():
    first, second = arguments(), arguments(seed=2)
    openmok.moe(**first)
    openmok.moe(**second)
    assert len(calls()) == 2
    openmok.moe(**(second | {"gate_up": second["gate_up"].chunk(2, 1)}))
    assert len(calls()) == 2  # what was computed for a call is not kept
    del first
    gc.collect()
    assert len(calls()) == 1
    openmok.clear_workspaces()
    assert calls() == []
    openmok.moe(**second)


def test_a_compiled_call_may_be_the_first():
    program = """
import torch, openmok
from test_torch import arguments
made = arguments()
layer = torch.compile(lambda x: openmok.moe(**(made | {"x": x}))[0], fullgraph=True,
                      backend="aot_eager")
out = layer(made["x"])
print(torch.equal(out, openmok.moe(**made)[0]), torch.equal(out, layer(made["x"])))
"""
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True True\n", done.stderr
