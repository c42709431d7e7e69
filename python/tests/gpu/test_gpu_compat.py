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


def split(stacked, is_apart):
    """A matrix of all experts as one of each, in memories of their own or not."""
    experts = [expert.clone() for expert in stacked] if is_apart else list(stacked)
    table = compat.make_routed_weight_storage_table_bf16(experts)
    return compat.SplitRoutedWeight(data=experts[0], storage_table=table)


@pytest.mark.parametrize("form", ["one tensor", "experts of one storage", "experts apart"])
def test_gate_and_up_in_one_into_main_grads(form):
    """As Megatron-LM's adapter calls: twice, which adds to what the buffers hold."""
    made = arguments(700, shared=True)
    del made["shared_weights"]
    d_out = d_out_of(made)
    inputs = made["x"].detach(), made["topk_weights"].detach()
    (shared_fc1, shared_fc2), fc1, fc2 = made["shared"], made["gate_up"], made["down"]
    buffers = [torch.full(w.shape, 0.5, device="cuda") for w in (shared_fc1, shared_fc2, fc1, fc2)]
    shared = *shared_fc1.detach().chunk(2, 0), shared_fc2.detach()
    routed, tables, of_experts = (fc1.detach(), fc2.detach()), None, None
    main_fc1, main_fc2 = buffers[2:]
    if form != "one tensor":
        is_apart = form == "experts apart"
        routed = [split(w, is_apart) for w in routed]
        of_experts = [[b.clone() for b in buffer] if is_apart else list(buffer)
                      for buffer in buffers[2:]]
        of_fc1, of_fc2 = (compat.make_routed_d_weight_storage_table(e) for e in of_experts)
        tables = of_fc1, of_fc1, of_fc2
        main_fc1, main_fc2 = of_experts[0][0], of_experts[1][0]
    of_shared = *buffers[0].chunk(2, 0), buffers[1]
    main_grads = of_shared[0], main_fc1, of_shared[1], main_fc1, of_shared[2], main_fc2
    workspace = compat.get_workspace(
        CONFIG, None, device=0, num_local_tokens=700, hidden_size=H, topk=K
    )
    for weight in (shared_fc1, shared_fc2, fc1, fc2):
        weight.main_grad = torch.full(weight.shape, 0.5, device="cuda")
    for _ in range(2):
        schedule = compat.build_schedule(workspace, CONFIG, made["topk_ids"], num_local_experts=E)
        call = CONFIG, workspace, schedule
        weights = *shared, routed[0], routed[0], routed[1]
        out, ctx = compat.forward(*call, *inputs, *weights)
        found = compat.backward(
            *call, ctx, d_out, *inputs, *weights, main_grads=main_grads,
            main_grad_storage_tables=tables,
        )
        expected, _ = openmok.moe(**made)
        made["x"].grad = made["topk_weights"].grad = None
        expected.backward(d_out)
        assert torch.equal(out, expected.detach())
        assert torch.equal(found[0], made["x"].grad)
        assert torch.equal(found[1], made["topk_weights"].grad)
    sums = buffers
    if of_experts is not None:
        sums = [*buffers[:2], *(torch.stack(experts) for experts in of_experts)]
    for value, weight in zip(sums, (shared_fc1, shared_fc2, fc1, fc2)):
        assert torch.equal(value, weight.main_grad)
