"""Blocks of transformers with the layer inside, against their own eager experts in FP64."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import openmok
from bounds import assert_total_within_bounds, assert_within_bounds
import openmok.integrations.transformers as integration

DEVICE = "cuda" if openmok.why_no_cuda() == "" and torch.cuda.is_available() else "cpu"


def qwen3():
    from transformers.models.qwen3_moe import modeling_qwen3_moe as models

    config = transformers.Qwen3MoeConfig(
        hidden_size=64, moe_intermediate_size=40, num_experts=8, num_experts_per_tok=3
    )
    return config, models.Qwen3MoeExperts(config), 8, 3


def mixtral():
    from transformers.models.mixtral import modeling_mixtral as models

    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=40, num_local_experts=8, num_experts_per_tok=2
    )
    return config, models.MixtralExperts(config), 8, 2


def gpt_oss():
    from transformers.models.gpt_oss import modeling_gpt_oss as models

    config = transformers.GptOssConfig(
        hidden_size=64, intermediate_size=40, num_local_experts=8, num_experts_per_tok=4
    )
    return config, models.GptOssExperts(config), 8, 4


@pytest.mark.parametrize("make", [qwen3, mixtral, gpt_oss])
def test_experts_of_a_model(make):
    integration.register()
    torch.manual_seed(0)
    config, experts, num_experts, top_k = make()
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_((torch.randn(parameter.shape) * 64**-0.5).bfloat16())
    right = make()[1].double()
    right.load_state_dict({name: t.double() for name, t in experts.state_dict().items()})
    experts.to(DEVICE)
    x = torch.randn(90, 64).bfloat16().float()
    ids = torch.rand(90, num_experts).argsort(1)[:, :top_k]
    weights = torch.rand(90, top_k)
    d_out = torch.randn(90, 64).bfloat16().float()

    experts.config._experts_implementation = "openmok"
    right.config._experts_implementation = "eager"
    own = [t.to(DEVICE, copy=True).requires_grad_() for t in (x, weights)]
    out = experts(own[0], ids.to(DEVICE), own[1])
    out.backward(d_out.to(DEVICE))
    fp64 = [t.detach().double().requires_grad_() for t in (x, weights)]
    expected = right(fp64[0], ids, fp64[1])
    expected.backward(d_out.double())

    assert_within_bounds("out", out.detach().cpu(), expected.detach())
    assert_within_bounds("x", own[0].grad.cpu(), fp64[0].grad)
    assert_total_within_bounds("weights", own[1].grad.cpu(), fp64[1].grad)
    for (name, found), known in zip(experts.named_parameters(), right.parameters()):
        assert_total_within_bounds(name, found.grad.cpu(), known.grad)


def qwen3_block():
    from transformers.models.qwen3_moe import modeling_qwen3_moe as models

    return models.Qwen3MoeSparseMoeBlock(qwen3()[0])


def mixtral_block():
    from transformers.models.mixtral import modeling_mixtral as models

    return models.MixtralSparseMoeBlock(mixtral()[0])


def gpt_oss_block():
    from transformers.models.gpt_oss import modeling_gpt_oss as models

    return models.GptOssMLP(gpt_oss()[0])


@pytest.mark.parametrize("make", [qwen3_block, mixtral_block, gpt_oss_block])
def test_a_block_with_its_router(make):
    """Their router beside our experts: nothing but the experts' rounding differs."""
    integration.register()
    torch.manual_seed(0)
    block = make()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_((torch.randn(parameter.shape) * 64**-0.5).bfloat16())
    right = make().double()
    right.load_state_dict({name: t.double() for name, t in block.state_dict().items()})
    block.to(DEVICE)
    block.experts.config._experts_implementation = "openmok"
    right.experts.config._experts_implementation = "eager"
    x = torch.randn(2, 60, 64).bfloat16().float()
    d_out = torch.randn(2, 60, 64).bfloat16().float()

    def run(block, x):
        x = x.requires_grad_()
        out = block(x)
        out = out[0] if isinstance(out, tuple) else out
        out.backward(d_out.to(x.device, x.dtype))
        return out.detach().cpu(), x.grad.cpu()

    out, d_x = run(block, x.to(DEVICE, copy=True))
    expected, right_d_x = run(right, x.double())
    assert_within_bounds("out", out.flatten(0, 1), expected.flatten(0, 1))
    # The router's part is a sum with cancellation over gradients that are within 4e-3.
    assert_total_within_bounds("x", d_x, right_d_x, bound=1e-2)
    for (name, found), known in zip(block.named_parameters(), right.parameters()):
        assert_total_within_bounds(name, found.grad.cpu(), known.grad, bound=1.5e-2)


def test_a_precision_by_its_name():
    integration.register("openmok-mxfp8", precision="mxfp8")
    torch.manual_seed(0)
    _, experts, num_experts, top_k = qwen3()
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_((torch.randn(parameter.shape) * 64**-0.5).bfloat16())
    x, ids = torch.randn(40, 64), torch.rand(40, num_experts).argsort(1)[:, :top_k]
    weights = torch.rand(40, top_k)
    experts.config._experts_implementation = "openmok-mxfp8"
    expected, _ = openmok.moe(
        x, ids, weights, experts.gate_up_proj, experts.down_proj, precision="mxfp8"
    )
    assert torch.equal(experts(x, ids, weights), expected)
    with pytest.raises(openmok.MokShapeError, match="precision: expected"):
        integration.register("another", precision="fp4")


def test_a_whole_model_by_one_argument():
    integration.register()
    config = transformers.Qwen3MoeConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=3,
    )
    torch.manual_seed(0)
    eager = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="openmok")
    model.load_state_dict(eager.state_dict())
    text = torch.randint(0, 128, (2, 33))
    eager, model = eager.to(DEVICE), model.to(DEVICE)
    losses = [m(text.to(DEVICE), labels=text.to(DEVICE)).loss for m in (eager, model)]
    assert abs(losses[0].item() - losses[1].item()) < 2e-3
    losses[1].backward()
    assert all(p.grad is not None for p in model.parameters())


def test_another_activation_is_refused():
    integration.register()
    from transformers.models.qwen3_moe import modeling_qwen3_moe as models

    config = transformers.Qwen3MoeConfig(
        hidden_size=64, moe_intermediate_size=40, num_experts=8, hidden_act="gelu"
    )
    config._experts_implementation = "openmok"
    experts = models.Qwen3MoeExperts(config)
    x, ids = torch.zeros(2, 64, device="cpu"), torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(openmok.MokShapeError, match="Qwen3MoeExperts: expected experts with silu"):
        experts(x, ids, torch.ones(2, 1))
