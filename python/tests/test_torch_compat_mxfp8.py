"""`openmok.compat` with routed weights in MXFP8, which the caller has quantised."""

import pytest

torch = pytest.importorskip("torch")

import openmok
from openmok import compat
from test_torch import in_fp64, leaves, plain_layer

CONFIG = compat.MoKConfig(minibatch_size=256, macrobatch_size=1024)
T, H, I, E, K, S = 300, 256, 128, 4, 2, 64


def arguments(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).bfloat16()

    made = {
        "x": normal(T, H),
        "topk_weights": torch.rand(T, K, generator=generator),
        "gate_up": normal(E, 2 * I, H, scale=H**-0.5),
        "down": normal(E, H, I, scale=I**-0.5),
        "shared": (normal(2 * S, H, scale=H**-0.5), normal(H, S, scale=S**-0.5)),
        "shared_weights": torch.ones(T),
    }
    for leaf in leaves(made).values():
        leaf.requires_grad_()
    ids = torch.rand(T, E, generator=generator).argsort(1)[:, :K]
    return made | {"topk_ids": ids}


def quantized(made, is_backward):
    gate, up = made["gate_up"].detach().chunk(2, 1)
    pair = [compat.mxfp8_quantize(w, True, is_backward) for w in (gate, up)]
    down = compat.mxfp8_quantize(made["down"], not is_backward, is_backward)
    pair = [parts if is_backward else parts[:2] for parts in pair]
    return [*pair, down[2:] if is_backward else down[:2]]


def setting():
    workspace = compat.get_workspace(
        CONFIG, None, device="cpu", num_local_tokens=T, hidden_size=H, topk=K
    )
    made = arguments()
    schedule = compat.build_schedule(workspace, CONFIG, made["topk_ids"], num_local_experts=E)
    shared = [*made["shared"][0].detach().chunk(2, 0), made["shared"][1].detach()]
    inputs = made["x"].detach(), made["topk_weights"].detach()
    return workspace, schedule, made, inputs, shared


@pytest.mark.parametrize("recompute", [False, True])
def test_the_bits_of_moe_and_near_a_plain_layer(recompute):
    workspace, schedule, made, (x, router), shared = setting()
    d_out = torch.randn(T, H, generator=torch.Generator().manual_seed(3)).bfloat16()
    forward, backward = quantized(made, False), quantized(made, True)
    out, ctx = compat.forward(CONFIG, workspace, schedule, x, router, *shared, *forward)
    if recompute:
        ctx = compat.recompute_forward_context(
            CONFIG, workspace, schedule, x, *shared[:2], *forward[:2]
        )
    found = compat.backward(
        CONFIG, workspace, schedule, ctx, d_out, x, router, *shared, *backward
    )
    expected, _ = openmok.moe(**made, precision="mxfp8")
    expected.backward(d_out)
    gate, up = made["gate_up"].grad.chunk(2, 1)
    right = [made["x"].grad, made["topk_weights"].grad, gate, up, made["down"].grad]
    right += [*made["shared"][0].grad.chunk(2, 0), made["shared"][1].grad]
    assert torch.equal(out, expected.detach())
    for value, known in zip(found, right, strict=True):
        assert value.dtype == known.dtype and torch.equal(value, known)
    fp64 = in_fp64(made)
    plain = plain_layer(**fp64)
    plain.backward(d_out.double())
    for value, known in (out, plain.detach()), (found[4], fp64["down"].grad):
        error = (value.double() - known).norm() / known.norm()
        assert 0.01 < error < 0.12


def test_bytes_are_those_of_the_library():
    """All of them, of both orientations, among them subnormals, zeros, huge numbers and NaN."""
    made = arguments()
    gate, up = (w.contiguous() for w in made["gate_up"].detach().chunk(2, 1))
    down = made["down"].detach()
    gate[0] *= torch.logspace(-45, 38, I)[:, None].bfloat16()
    up[1, 3, 40:90], up[2, 5, 7], down[3, 1, 1] = 0, torch.inf, torch.nan
    down[0, 9] = -3.3e38
    shape = openmok.LayerShape(H, I, E, K, precision="mxfp8")
    workspace = openmok.Workspace(openmok.Group.alone(), shape, openmok.Tuning(), 8)
    memory = openmok.Fp8Weights(workspace)
    openmok.quantize_weights(workspace, openmok.Weights(gate=gate, up=up, down=down), memory)
    parts = [compat.mxfp8_quantize(w, True, True) for w in (gate, up, down)]
    expected = [p[0:2] for p in parts] + [p[2:4] for p in parts]
    flat = [t.view(torch.uint8).reshape(-1) for pair in expected for t in pair]
    assert torch.equal(torch.from_dlpack(memory.data(workspace)), torch.cat(flat))


def test_values_come_back():
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(1)).bfloat16()
    elements, scales, *transposed = compat.mxfp8_quantize(x, True, False)
    assert transposed == [None, None] and scales.shape == (2, 3, 32, 16)
    # The published inverse: a tile's byte of row r and block b.
    r, b = torch.meshgrid(torch.arange(256), torch.arange(12), indexing="ij")
    byte = r % 32 * 16 + r % 128 // 32 * 4 + b % 4
    powers = torch.exp2(scales.flatten(2)[r // 128, b // 4, byte].double() - 127)
    values = elements.double() * powers.repeat_interleave(32, 1)
    assert ((values - x.double()).abs() <= x.double().abs() / 16 + powers.max() / 512).all()


def test_what_is_refused():
    workspace, schedule, made, inputs, shared = setting()
    forward = quantized(made, False)

    def refused(sentence, weights):
        with pytest.raises(openmok.MokShapeError, match=sentence):
            compat.forward(CONFIG, workspace, schedule, *inputs, *shared, *weights)

    refused("expected tensors or tuples, found both", [*forward[:2], made["down"]])
    refused("gate: expected a tuple of 2 tensors, found 1", [forward[0][:1], *forward[1:]])
    refused(r"down: expected elements \[4, 256, 128\]", [*forward[:2], forward[0]])
    refused(r"up: expected \(float8_e4m3fn, uint8\)", [forward[0], forward[0][::-1], forward[2]])
    with pytest.raises(openmok.MokShapeError, match="multiples of 128, found .100, 128."):
        compat.mxfp8_quantize(torch.zeros(100, 128, dtype=torch.bfloat16), True, True)
    with pytest.raises(openmok.MokShapeError, match="expected dtype torch.bfloat16"):
        compat.mxfp8_quantize(torch.zeros(128, 128), True, True)
    # One more says that its transposed elements lie otherwise.
    refused("gate: expected a tuple of 2 tensors, found 3", [(*forward[0], True), *forward[1:]])
    with pytest.raises(openmok.MokShapeError, match="gate: expected a tuple of 4 tensors"):
        ctx = compat.forward(CONFIG, workspace, schedule, *inputs, *shared, *forward)[1]
        compat.backward(
            CONFIG, workspace, schedule, ctx, inputs[0], *inputs, *shared, *forward
        )
