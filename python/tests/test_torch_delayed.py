"""Weight gradients apart from the backward."""

import pytest

torch = pytest.importorskip("torch")

import openmok
from test_torch import arguments, assert_same_bits, d_out_of, grads, leaves, trained
from test_torch_main_grad import WEIGHTS, with_main_grads


def without_grads(made):
    for leaf in leaves(made).values():
        leaf.grad = None
    return made


@pytest.mark.parametrize("more", [{}, {"biases": True}, {"shared": True}])
def test_two_calls_later(more):
    """f1 f2 b1 b2, then the weights of both: the same bits as two whole backwards."""
    first, second = arguments(100, seed=1, **more), arguments(60, seed=2, **more)
    weights = {k: v for k, v in first.items() if k in ("gate_up", "down", "shared")}
    second |= weights
    d_outs = d_out_of(first), d_out_of(second)
    whole = {}
    for made, d_out in zip((first, second), d_outs):
        without_grads(made)
        whole[id(made)] = trained(made, d_out)[1]
    without_grads(first), without_grads(second)
    queue = []
    outs = [openmok.moe(**made, delayed_wgrads=queue)[0] for made in (first, second)]
    for out, d_out in zip(outs, d_outs):
        out.backward(d_out)
    assert len(queue) == 2
    assert torch.equal(first["x"].grad, whole[id(first)]["x"])
    assert torch.equal(second["topk_weights"].grad, whole[id(second)]["topk_weights"])
    assert first["gate_up"].grad is None and first["down"].grad is None
    for wgrad in queue:
        wgrad()
    for name in ("gate_up", "down"):
        expected = whole[id(first)][name] + whole[id(second)][name]
        assert torch.equal(first[name].grad, expected), name
    with pytest.raises(openmok.MokError, match="expected one call, found a second one"):
        queue[0]()


def test_into_main_grad():
    made = arguments(shared=True)
    d_out = d_out_of(made)
    _, plain = trained(made, d_out)
    without_grads(made)
    parameters = with_main_grads(made, torch.float32)
    queue = []
    openmok.moe(**made, delayed_wgrads=queue)[0].backward(d_out)
    queue[0]()
    for name in WEIGHTS:
        assert torch.equal(parameters[name].main_grad, 0.5 + plain[name]), name
        assert parameters[name].grad is None and parameters[name].grad_added_to_main_grad


@pytest.mark.parametrize("into_main_grad", [False, True])
def test_the_shared_expert_before_the_others(into_main_grad):
    made = arguments(biases=True, shared=True)
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    without_grads(made)
    if into_main_grad:
        for leaf in leaves(made).values():
            leaf.main_grad = torch.full(leaf.shape, 0.5)
    queue = []
    openmok.moe(**made, delayed_wgrads=queue)[0].backward(d_out)

    def found(name):
        leaf = leaves(made)[name]
        return leaf.main_grad - 0.5 if into_main_grad else leaf.grad

    queue[0].shared_expert()
    routed = [n for n in expected if n.startswith(("gate_up", "down"))]
    for name in routed:
        assert not found(name).any() if into_main_grad else found(name) is None, name
    for name in ("shared 0", "shared 1"):
        right = (0.5 + expected[name]) - 0.5 if into_main_grad else expected[name]
        assert torch.equal(found(name), right), name
    with pytest.raises(openmok.MokError, match="one call of shared_expert, found a second one"):
        queue[0].shared_expert()
    queue[0]()
    for name in ("shared 0", "shared 1", *routed):
        right = (0.5 + expected[name]) - 0.5 if into_main_grad else expected[name]
        assert torch.equal(found(name), right), name
    with pytest.raises(openmok.MokError, match="expected one call, found a second one"):
        queue[0].shared_expert()


def test_there_must_be_a_shared_expert():
    queue = []
    openmok.moe(**arguments(), delayed_wgrads=queue)[0].sum().backward()
    with pytest.raises(openmok.MokShapeError, match="expected a layer with a shared expert"):
        queue[0].shared_expert()


def test_frozen_weights_and_weights_that_were_computed():
    made = arguments()
    made["down"].requires_grad_(False)
    queue = []
    openmok.moe(**made, delayed_wgrads=queue)[0].sum().backward()
    queue[0]()
    assert made["down"].grad is None and made["gate_up"].grad is not None
    made["gate_up"] = made["gate_up"] * 1.0
    with pytest.raises(openmok.MokShapeError, match="expected weights that are parameters"):
        openmok.moe(**made, delayed_wgrads=queue)


def test_not_in_a_compiled_graph():
    made = arguments(10)
    layer = lambda: openmok.moe(**made, delayed_wgrads=[])[0]
    with pytest.raises(Exception, match="expected none in a compiled graph"):
        torch.compile(layer, backend="eager", fullgraph=True)()
