"""`openmok.compat` on one GPU: the bits of `openmok.moe`."""

import pytest

torch = pytest.importorskip("torch")

from gpu_cases import E, H, K, arguments, d_out_of
import openmok
from openmok import compat

CONFIG = compat.MoKConfig(minibatch_size=256, macrobatch_size=1024)


@pytest.mark.parametrize("recompute", [False, True])
def test_forward_and_backward(recompute):
    made = arguments(700, shared=True)
    del made["shared_weights"]
    d_out = d_out_of(made)
    x, router = made["x"].detach(), made["topk_weights"].detach()
    weights = [*made["shared"][0].detach().chunk(2, 0), made["shared"][1].detach()]
    weights += [*made["gate_up"].detach().chunk(2, 1), made["down"].detach()]
    workspace = compat.get_workspace(
        CONFIG, None, device=0, num_local_tokens=700, hidden_size=H, topk=K
    )
    for _ in range(2):
        schedule = compat.build_schedule(
            workspace, CONFIG, made["topk_ids"], num_local_experts=E
        )
        out, ctx = compat.forward(CONFIG, workspace, schedule, x, router, *weights, 7.0)
        if recompute:
            ctx = compat.recompute_forward_context(
                CONFIG, workspace, schedule, x, *weights[:2], *weights[3:5], 7.0
            )
        found = compat.backward(
            CONFIG, workspace, schedule, ctx, d_out, x, router, *weights, 7.0
        )
    expected, rows = openmok.moe(**made, limit=7.0)
    expected.backward(d_out)
    assert torch.equal(out, expected.detach())
    assert torch.equal(schedule.tokens_per_expert, rows)
    right = [made["x"].grad, made["topk_weights"].grad, *made["gate_up"].grad.chunk(2, 1)]
    right += [made["down"].grad, *made["shared"][0].grad.chunk(2, 0), made["shared"][1].grad]
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
