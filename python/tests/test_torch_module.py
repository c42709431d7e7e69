"""`openmok.MoE` against the same block in plain torch operations and FP64."""

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from bounds import assert_total_within_bounds, assert_within_bounds
from test_torch import plain_layer
from textbook import bf16

SHAPE = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K, cases.S)


def made_module(**options):
    torch.manual_seed(0)
    module = openmok.MoE(SHAPE, shared_gate=True, selection_bias=True, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(bf16(parameter.numpy())))
        module.gate.e_score_correction_bias.uniform_(-0.3, 0.3)
    return module


def plain_block(module, score, p, x):
    """The block's output from parameters p (by name), and its choice."""
    logits = x @ p["gate.weight"].T
    scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    ids = (scores + module.gate.e_score_correction_bias).topk(cases.K, -1).indices
    weights = scores.gather(-1, ids)
    weights = 2.5 * weights / weights.sum(-1, keepdim=True)
    shared = torch.cat(
        [p["shared_expert.gate_proj.weight"], p["shared_expert.up_proj.weight"]]
    )
    return (
        plain_layer(
            x,
            ids,
            weights,
            p["experts.gate_up_proj"],
            p["experts.down_proj"],
            shared=(shared, p["shared_expert.down_proj.weight"]),
            shared_weights=(x @ p["shared_expert_gate.weight"].T).sigmoid().squeeze(-1),
        ),
        ids,
    )


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_block_and_gradients(score):
    module = made_module(score=score, scaling=2.5)
    x = torch.from_numpy(cases.inputs(48)[0]).reshape(4, 12, cases.H).requires_grad_()
    out = module(x)
    out.square().sum().backward()

    p = {n: t.detach().double().requires_grad_() for n, t in module.named_parameters()}
    right_x = x.detach().double().reshape(-1, cases.H).requires_grad_()
    expected, ids = plain_block(module, score, p, right_x)
    # The gradient of the square from the same output, for a comparison of the layer alone.
    expected.backward(2 * out.detach().double().reshape(-1, cases.H))
    assert out.shape == x.shape
    assert_within_bounds("out", out.detach().reshape(-1, cases.H), expected.detach())
    assert_within_bounds("x", x.grad.reshape(-1, cases.H), right_x.grad)
    for name, parameter in module.named_parameters():
        if "proj" in name:
            assert_within_bounds(name, parameter.grad, p[name].grad)
        else:
            # Sums over tokens of what is itself within 4e-3, with cancellation.
            assert_total_within_bounds(name, parameter.grad, p[name].grad, bound=1.5e-2)
    assert torch.equal(module.tokens_per_expert.long(), torch.bincount(ids.flatten(), minlength=6))


def test_replayed_choices_take_live_weights():
    module = made_module()
    x = torch.from_numpy(cases.inputs(20)[0])
    ids, _ = module.gate(x)
    assert torch.equal(module(x, ids), module(x))
    module(x, ids.roll(1, 0)).sum().backward()
    assert module.gate.weight.grad.abs().sum() > 0


def test_names_of_the_parameters():
    assert {name for name, _ in made_module().named_parameters()} == {
        "gate.weight",
        "experts.gate_up_proj",
        "experts.down_proj",
        "shared_expert.gate_proj.weight",
        "shared_expert.up_proj.weight",
        "shared_expert.down_proj.weight",
        "shared_expert_gate.weight",
    }


def test_a_router_without_selection_bias_has_no_buffer():
    names = set(openmok.MoE(SHAPE).state_dict())
    assert not any("bias" in name for name in names) and "gate.weight" in names


def test_autocast_leaves_the_layer_alone():
    module = made_module()
    x = torch.from_numpy(cases.inputs(20)[0])
    expected = module.gate(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = module.gate(x)
        out = module(x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert out.dtype == torch.float32
