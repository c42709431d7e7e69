"""The layer as an experts implementation of Hugging Face transformers.

    import openmok.integrations.transformers as integration
    integration.register()
    model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="openmok")

For models whose experts stand behind transformers' `use_experts_implementation` and compute
silu(gate) * up (Qwen3-MoE, Mixtral, DeepSeek-V3 and others) or gpt-oss's gate. The router stays the
model's own. Weights [E, 2I, H] and [E, H, I] are read where they are; gpt-oss keeps them transposed
and its gate and up interleaved, so that each call copies them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .._functional import moe
from ..errors import MokShapeError
from ..shape import Activation, require_precision


def register(name: str = "openmok", precision: str = "bf16") -> None:
    """Makes `experts_implementation=name` mean this layer, in a precision of `openmok.moe`."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    require_precision(precision)
    ALL_EXPERTS_FUNCTIONS.register(
        name, functools.partial(experts_forward, precision=precision)
    )


def experts_forward(
    experts: torch.nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    precision: str = "bf16",
) -> torch.Tensor:
    """hidden_states [T, H], top_k_index and top_k_weights [T, K]; returns [T, H].

    Raises:
        MokShapeError: experts without a gate, with a norm of their own or another activation.
    """
    _require(experts, getattr(experts, "has_gate", True), "with a gate", "without")
    norm = getattr(experts, "has_post_expert_norm", False)
    _require(experts, not norm, "without a norm after each expert", "with one")
    activation = _activation_of(experts)
    gate_up, down = experts.gate_up_proj, experts.down_proj
    bias = experts.gate_up_proj_bias if experts.has_bias else None
    if experts.is_transposed:
        gate_up, down = gate_up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous()
    if not experts.is_concatenated:
        gate_up = gate_up[:, 0::2], gate_up[:, 1::2]
        bias = None if bias is None else (bias[:, 0::2].contiguous(), bias[:, 1::2].contiguous())
    if getattr(experts, "_is_expert_parallel", True):
        # Choices of other ranks' experts have the number behind the last one.
        top_k_index = top_k_index.masked_fill(top_k_index >= experts.num_experts, -1)
    out, _ = moe(
        hidden_states,
        top_k_index,
        top_k_weights,
        gate_up,
        down,
        gate_up_bias=bias,
        down_bias=experts.down_proj_bias if experts.has_bias else None,
        activation=activation,
        precision=precision,
    )
    return out


def _require(experts: torch.nn.Module, holds: bool, expected: str, found: str) -> None:
    if not holds:
        name = type(experts).__name__
        raise MokShapeError(f"{name}: expected experts {expected}, found them {found}")


def _activation_of(experts: torch.nn.Module) -> Activation:
    act: Any = getattr(experts, "act_fn", None)
    if act is None and hasattr(experts, "alpha") and hasattr(experts, "limit"):
        return Activation(limit=float(experts.limit), alpha=float(experts.alpha), beta=1.0)
    is_silu = isinstance(act, torch.nn.SiLU) or type(act).__name__ == "SiLUActivation"
    is_plain = type(experts)._apply_gate.__module__.startswith("transformers.integrations")
    found = "another gate" if is_silu else type(act).__name__
    _require(experts, is_silu and is_plain, "with silu(gate) * up", f"with {found}")
    return Activation()
