"""`moe` on torch tensors of the CPU: outputs and all gradients against a plain layer in FP64."""

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from openmok._torch_views import can_stack, stack_views
from bounds import assert_total_within_bounds, assert_within_bounds
from torch.utils.checkpoint import checkpoint

INPUTS = ("x", "topk_weights", "shared_weights")


def plain_layer(x, topk_ids, topk_weights, gate_up, down, gate_up_bias=None, down_bias=None,
                shared=None, shared_weights=None):
    """The equations in plain torch operations, in the type of x."""
    def expert(rows, gate_up, down, gate_up_bias=0.0, down_bias=0.0):
        gate, up = (rows @ gate_up.T + gate_up_bias).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ down.T + down_bias

    out = torch.zeros_like(x)
    for e in range(len(down)):
        biases = () if gate_up_bias is None else (gate_up_bias[e], down_bias[e])
        tokens, choices = torch.nonzero(topk_ids == e, as_tuple=True)
        y = expert(x[tokens], gate_up[e], down[e], *biases)
        out = out.index_add(0, tokens, topk_weights[tokens, choices, None] * y)
    if shared is not None:
        out = out + shared_weights[:, None] * expert(x, *shared)
    return out


def arguments(num_tokens=100, seed=0, dtype=torch.float32, biases=False, shared=False):
    """Keyword arguments of `moe` as leaves: floats of the layer in dtype, router weights F32."""
    x, ids, router = (torch.from_numpy(a) for a in cases.inputs(num_tokens, seed))
    made = {"x": x.to(dtype), "topk_weights": router}
    for name, value in cases.weights(biases=biases, shared=shared).items():
        parts = value if isinstance(value, tuple) else (value,)
        tensors = tuple(torch.from_numpy(v).to(dtype) for v in parts)
        made[name] = tensors if len(tensors) > 1 else tensors[0]
    if shared:
        made["shared_weights"] = torch.linspace(0.1, 2, num_tokens)
    for leaf in leaves(made).values():
        leaf.requires_grad_()
    return made | {"topk_ids": ids}


def leaves(made):
    """Every floating tensor by name."""
    named = {}
    for name, value in made.items():
        for i, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
            if torch.is_tensor(tensor) and tensor.is_floating_point():
                named[name if tensor is value else f"{name} {i}"] = tensor
    return named


def in_fp64(made):
    def one(tensor):
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().double().requires_grad_()

    return {k: tuple(map(one, v)) if isinstance(v, tuple) else one(v) for k, v in made.items()}


def grads(made):
    return {name: leaf.grad.clone() for name, leaf in leaves(made).items()}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def trained(made, d_out):
    out, _ = openmok.moe(**made)
    out.backward(d_out)
    return out.detach(), grads(made)


def d_out_of(made, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = made["x"]
    return torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("more", [{}, {"biases": True}, {"shared": True}])
def test_output_and_all_gradients_are_the_plain_layers(dtype, more):
    made = arguments(dtype=dtype, **more)
    d_out = d_out_of(made)
    out, found = trained(made, d_out)
    right = in_fp64(made)
    expected_out = plain_layer(**right)
    expected_out.backward(d_out.double())

    assert out.dtype == dtype
    assert_within_bounds("out", out.float(), expected_out.detach())
    for name, leaf in leaves(right).items():
        assert found[name].dtype == leaves(made)[name].dtype
        check = assert_total_within_bounds if name in INPUTS[1:] else assert_within_bounds
        check(name, found[name].float(), leaf.grad)


def test_tokens_per_expert_counts_rows():
    made = arguments()
    _, rows = openmok.moe(**made)
    ids = made["topk_ids"]
    assert torch.equal(rows, torch.bincount(ids[ids >= 0], minlength=cases.E).int())
    assert not rows.requires_grad


def test_only_what_is_asked_for_gets_a_gradient():
    made = arguments()
    made["down"].requires_grad_(False)
    made["x"].requires_grad_(False)
    out, _ = openmok.moe(**made)
    out.sum().backward()
    assert made["down"].grad is None and made["x"].grad is None
    assert made["gate_up"].grad is not None


def test_views_of_one_storage_as_lists_and_pairs():
    made = arguments()
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    for forms in (
        {"gate_up": list(made["gate_up"].detach()), "down": list(made["down"].detach())},
        {"gate_up": tuple(made["gate_up"].detach().split(cases.I, 1))},
    ):
        flat = [t.requires_grad_() for form in forms.values() for t in form]
        out, _ = openmok.moe(**(made | forms))
        out.backward(d_out)
        found = [t.grad for t in flat]
        whole = (
            [*expected["gate_up"], *expected["down"]]
            if "down" in forms
            else expected["gate_up"].split(cases.I, 1)
        )
        assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


def test_router_weights_in_bf16_get_gradients_in_bf16():
    made = arguments()
    made["topk_weights"] = made["topk_weights"].detach().bfloat16().requires_grad_()
    trained(made, d_out_of(made))
    assert made["topk_weights"].grad.dtype == torch.bfloat16


class KeptBytes(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of schedules and contexts that the operator has returned."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.openmok.moe.default:
            self.calls.append(sum(block.numel() for block in result[2:]))
        return result


def test_without_gradients_nothing_is_kept():
    made = arguments()
    frozen = {k: v if isinstance(v, tuple) else v.detach() for k, v in made.items()}
    with KeptBytes() as kept:
        with torch.no_grad():
            first, _ = openmok.moe(**made)
        second, _ = openmok.moe(**frozen)
        openmok.moe(**made)
    assert kept.calls[:2] == [0, 0] and kept.calls[2] > 0
    assert torch.equal(first, second) and not first.requires_grad and not second.requires_grad


def test_what_a_call_keeps_goes_through_hooks_on_saved_tensors():
    made = arguments()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        openmok.moe(**made)
    kept = [t for t in packed if t.dtype == torch.uint8]
    assert len(kept) == 1 and kept[0].numel() > 0


def test_two_forwards_then_two_backwards():
    first, second = arguments(100, seed=1), arguments(60, seed=2)
    _, expected_first = trained(first, d_out_of(first))
    _, expected_second = trained(second, d_out_of(second))
    for leaf in (*leaves(first).values(), *leaves(second).values()):
        leaf.grad = None
    out_first, _ = openmok.moe(**first)
    out_second, _ = openmok.moe(**second)  # more tokens are to come: a larger workspace
    openmok.moe(**arguments(300))
    out_first.backward(d_out_of(first))
    out_second.backward(d_out_of(second))
    assert_same_bits(grads(first), expected_first)
    assert_same_bits(grads(second), expected_second)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_gives_the_same_bits(use_reentrant):
    made = arguments(biases=True)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    for leaf in leaves(made).values():
        leaf.grad = None
    layer = lambda x: openmok.moe(**(made | {"x": x}))[0]
    out = checkpoint(layer, made["x"], use_reentrant=use_reentrant)
    out.backward(d_out)
    assert torch.equal(out.detach(), expected_out)
    assert_same_bits(grads(made), expected)


def test_saved_tensors_that_were_copied_give_the_same_bits():
    made = arguments()
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    for leaf in leaves(made).values():
        leaf.grad = None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out, _ = openmok.moe(**made)
    openmok.clear_workspaces()
    openmok.moe(**arguments(300))
    out.backward(d_out)
    assert_same_bits(grads(made), expected)


def test_a_graph_can_be_walked_twice():
    made = arguments()
    d_out = d_out_of(made)
    out, _ = openmok.moe(**made)
    out.backward(d_out, retain_graph=True)
    once = grads(made)
    out.backward(d_out)
    assert_same_bits(grads(made), {name: 2 * g for name, g in once.items()})


def test_no_tokens():
    made = arguments(0)
    out, rows = openmok.moe(**made)
    out.sum().backward()
    assert out.shape == (0, cases.H) and rows.sum() == 0
    assert made["x"].grad.shape == (0, cases.H)
    assert (made["gate_up"].grad == 0).all() and (made["down"].grad == 0).all()


def test_every_choice_masked():
    made = arguments(9)
    made["topk_ids"] = torch.full_like(made["topk_ids"], -1)
    out, _ = openmok.moe(**made)
    out.sum().backward()
    assert all((t == 0).all() for t in (out, made["x"].grad, made["topk_weights"].grad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_types_are_refused(dtype):
    made = arguments()
    made["x"] = made["x"].detach().to(dtype)
    with pytest.raises(openmok.MokShapeError, match="x: expected dtype torch.bfloat16 or torch.fl"):
        openmok.moe(**made)


def test_experts_of_separate_storage_are_refused():
    made = arguments()
    made["down"] = [expert.clone() for expert in made["down"].detach()]
    with pytest.raises(openmok.MokShapeError, match="down: expected experts that lie in one stor"):
        openmok.moe(**made)


def test_which_tensors_are_slices_of_one():
    whole = torch.zeros(6, 40, 64)
    apart = whole.numpy()
    for tensors, expected in (
        (list(whole), True),
        (list(whole[::2]), True),
        (list(whole[:, :, 1:33]), True),
        (list(whole.transpose(1, 2)), True),
        ([whole[3]], True),
        ([whole[1]] * 3, True),
        (list(whole.flip(0)), True),  # a copy
        ([whole[i] for i in (2, 1, 0)], False),
        ([whole[i] for i in (0, 1, 3)], False),
        ([whole[0], whole[1, :39]], False),
        ([whole[0, :, ::2], whole[1, :, 1:33]], False),
        ([whole[0], whole[1].bfloat16()], False),
        # At equal distances, but nobody's one storage.
        ([torch.from_numpy(part) for part in apart], False),
        ([torch.zeros(40, 64) for _ in range(6)], False),
    ):
        assert can_stack(tensors) == expected
        if expected:
            view = stack_views("name", tensors)
            assert view.data_ptr() == tensors[0].data_ptr()
            for part, tensor in zip(view, tensors, strict=True):
                assert part.data_ptr() == tensor.data_ptr() and part.stride() == tensor.stride()
        else:
            with pytest.raises(openmok.MokShapeError, match="^name: "):
                stack_views("name", tensors)
