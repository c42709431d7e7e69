"""MOK_DUMP of torch's calls: what a failing backward leaves is the whole call."""

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file

import openmok
from test_dump import folder, replayed  # noqa: F401: a fixture
from test_torch import arguments, d_out_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_failed_backward_can_be_replayed(folder, dtype):  # noqa: F811
    group = openmok.Group.alone()
    made = arguments(dtype=dtype, biases=True, shared=True)
    d_out = d_out_of(made)
    expected, _ = openmok.moe(**made)
    expected.backward(d_out)
    right = {name: made[name].grad.clone() for name in ("x", "down")}
    out, _ = openmok.moe(**made, group=group)
    group.abandon("a test says so")
    with pytest.raises(openmok.MokTimeout, match="a test says so") as raised:
        out.backward(d_out)
    (file,) = folder.iterdir()
    assert raised.value.dump == file and str(raised.value).endswith(f"(its tensors are in {file})")
    held = load_file(file)
    assert torch.equal(held["grad_output"], d_out)
    assert torch.equal(held["shared_weights"], made["shared_weights"])
    status, _, written = replayed(file)
    assert status == 0
    result = load_file(written)
    assert torch.equal(result["output"], expected.detach().bfloat16())
    assert torch.equal(result["grad_hidden_states"], right["x"].bfloat16())
    assert torch.equal(result["grad_down_proj"].to(dtype), right["down"])


def test_an_operator_in_a_graph_dumps_too(folder):  # noqa: F811
    made = arguments(10)
    made["topk_ids"] = made["topk_ids"] + 100
    layer = torch.compile(lambda x: openmok.moe(**(made | {"x": x}))[0], backend="aot_eager")
    with pytest.raises(openmok.MokShapeError, match="its tensors are in"):
        layer(made["x"])
    assert len(list(folder.iterdir())) == 1
    torch._dynamo.reset()


def test_shapes_that_do_not_fit_are_kept_as_they_are(folder):  # noqa: F811
    made = arguments(10)
    made["topk_ids"] = made["topk_ids"][:5]
    with pytest.raises(openmok.MokShapeError, match=r"expected shape \[10, K\]"):
        openmok.moe(**made)
    (file,) = folder.iterdir()
    assert torch.equal(load_file(file)["topk_ids"], made["topk_ids"])
    status, sentence, _ = replayed(file)
    assert status == 2 and "topk_ids" in sentence
