"""The main_grad convention: gradients go into a buffer, hooks run once, autograd gets a dummy."""

import pytest

torch = pytest.importorskip("torch")

import openmok
from bounds import assert_within_bounds
from test_torch import arguments, d_out_of, leaves, trained

WEIGHTS = ("gate_up", "down", "shared 0", "shared 1")


def with_main_grads(made, dtype, names=WEIGHTS):
    parameters = {name: leaf for name, leaf in leaves(made).items() if name in names}
    for name, parameter in parameters.items():
        parameter.grad = None
        parameter.main_grad = torch.full(parameter.shape, 0.5, dtype=dtype)
        parameter.grad_added_to_main_grad = False
    return parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zero_out", [False, True])
def test_gradients_go_on_into_main_grad_and_hooks_run_once(dtype, zero_out):
    made = arguments(shared=True)
    d_out = d_out_of(made)
    _, plain = trained(made, d_out)
    parameters = with_main_grads(made, dtype)
    calls = dict.fromkeys(parameters, 0)

    for name, parameter in parameters.items():
        parameter.zero_out_wgrad = zero_out

        def count(_, name=name):
            calls[name] += 1

        parameter.register_post_accumulate_grad_hook(count)
    out, _ = openmok.moe(**made)
    out.backward(d_out)
    for name, parameter in parameters.items():
        # F32 gradients are the whole sums: one addition, one rounding.
        assert torch.equal(parameter.main_grad, (0.5 + plain[name]).to(dtype)), name
        assert parameter.grad_added_to_main_grad and calls[name] == 1, name
        assert parameter.grad.shape == parameter.shape
        if zero_out:
            assert (parameter.grad == 0).all()


def test_main_grad_beside_a_parameter_without_one():
    made = arguments()
    d_out = d_out_of(made)
    _, plain = trained(made, d_out)
    with_main_grads(made, torch.float32, names=("gate_up",))
    made["down"].grad = None
    out, _ = openmok.moe(**made)
    out.backward(d_out)
    assert torch.equal(made["gate_up"].main_grad, 0.5 + plain["gate_up"])
    assert torch.equal(made["down"].grad, plain["down"])


def test_experts_with_main_grads_of_their_own():
    made = arguments()
    d_out = d_out_of(made)
    _, plain = trained(made, d_out)
    experts = [torch.nn.Parameter(view) for view in made["down"].detach()]
    for expert in experts:  # separate buffers: no view of all of them
        expert.main_grad = torch.full(expert.shape, 0.5)
    out, _ = openmok.moe(**(made | {"down": experts}))
    out.backward(d_out)
    for expert, gradient in zip(experts, plain["down"], strict=True):
        assert torch.equal(expert.main_grad, 0.5 + gradient)
        assert expert.grad_added_to_main_grad


def test_bf16_parameters_accumulate_unrounded_gradients_in_f32():
    made = arguments(dtype=torch.bfloat16)
    d_out = d_out_of(made)
    wide = arguments(dtype=torch.float32)
    _, plain = trained(wide, d_out.float())
    parameters = with_main_grads(made, torch.float32)
    out, _ = openmok.moe(**made)
    out.backward(d_out)
    assert torch.equal(parameters["down"].main_grad, 0.5 + plain["down"])
    assert_within_bounds("gate_up", parameters["gate_up"].main_grad - 0.5, plain["gate_up"])
