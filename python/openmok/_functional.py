"""`openmok.moe`."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from . import _known, _numpy
from ._operands import weights_of
from ._plan import Options
from .shape import Activation, Tuning

# torch's part, with the first torch tensor. Before that nothing is known.
_torch_moe: Callable[..., tuple[Any, Any]] | None = None
_run_known: Callable[..., tuple[Any, Any] | None] | None = None


def _always() -> bool:
    return True


_is_compiling: Callable[[], bool] = _always  # or nothing is known yet


def moe(
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    gate_up: Any,
    down: Any,
    *,
    gate_up_bias: Any = None,
    down_bias: Any = None,
    shared: Any = None,
    shared_weights: Any = None,
    group: Any = None,
    activation: str | Activation = "swiglu",
    limit: float | None = None,
    alpha: float | None = None,
    precision: str = "bf16",
    tuning: Tuning | None = None,
    num_experts: int | None = None,
    delayed_wgrads: list[Any] | None = None,
) -> tuple[Any, Any]:
    """A mixture-of-experts layer, of torch tensors (with gradients) or NumPy arrays (without).

    T: tokens of this rank, H: hidden, I: an expert's width, E_l: experts of this rank, K: choices
    of a token, S: the shared expert's width. Floating tensors are BF16 or F32; F32 is rounded once
    to BF16 where it enters the layer, topk_weights and shared_weights excepted. Every rank of the
    group must make the call, with no tokens too.

        gate, up = x Wg^T + bg, x Wu^T + bu;  y = activate(gate, up) Wd^T + bd
        out = s * shared(x) + sum over choices of w * y

    Args:
        x: [T, H].
        topk_ids: [T, K] int32 or int64, of all ranks' experts; -1: no expert.
        topk_weights: [T, K]; NumPy: F32. torch: converted to F32.
        gate_up: [E_l, 2I, H], gate then up; or a pair (gate, up) of [E_l, I, H]; or a list of E_l
            tensors [2I, H] that are views of one storage. Nothing is copied.
        down: [E_l, H, I], or a list of E_l tensors [H, I].
        gate_up_bias: [E_l, 2I], a pair of [E_l, I], or a list.
        down_bias: [E_l, H] or a list.
        shared: (gate_up, down) of a shared expert: [2S, H] or a pair of [S, H], and [H, S].
        shared_weights: [T], the shared expert's weight of each token; absent: 1.
        group: the ranks: an `openmok.Group`, a process group of torch.distributed, a DeviceMesh of
            one dimension, or a name that `group_name` gave; absent: this process alone, on x's
            device.
        activation: "swiglu", or "gpt-oss" (limit 7, alpha 1.702, up + 1), or an Activation.
        limit, alpha: of the activation, instead of its own.
        precision: of the routed experts' products: "bf16", "fp8_block" or "mxfp8"
            (docs/precision.md of the project). torch: the weights are quantised once between two
            steps of an optimizer; NumPy: on every call.
        tuning: how the work is cut; groups of several ranks must name max_tokens.
        num_experts: of all ranks, where ranks own different numbers; absent: E_l times ranks.
        delayed_wgrads: torch: a list, to which the backward appends a function of no arguments that
            computes the weights' gradients and adds them to .grad or main_grad; the weights must
            be leaves. To be called once, after the backward, by every rank of the group.

    Returns:
        out [T, H] in x's dtype, and tokens_per_expert [E_l] int32 on x's device, which counts the
        rows that came to each local expert from all ranks.

    Raises:
        MokShapeError: a tensor or option that the layer cannot take; nothing was computed.
        MokTimeout: a rank that did not come.
    """
    weights = None
    if not _is_compiling():
        weights = _known.flat(gate_up, down, gate_up_bias, down_bias, shared)
        call = _known.find(weights)
        if call is not None:
            results = _run_known(  # type: ignore[misc]
                call,
                x,
                topk_ids,
                topk_weights,
                shared_weights,
                weights,
                (group, activation, limit, alpha, precision, tuning, num_experts),
                delayed_wgrads,
            )
            if results is not None:
                return results
    arguments = weights_of(gate_up, down, gate_up_bias, down_bias, shared)
    options = Options(
        group, activation, limit, alpha, precision, tuning, num_experts, delayed_wgrads
    )
    if hasattr(x, "__torch_function__"):
        if _torch_moe is None:
            _meet_torch()
        return _torch_moe(  # type: ignore[misc]
            x, topk_ids, topk_weights, shared_weights, arguments, options, weights
        )
    if isinstance(x, np.ndarray):
        return _numpy.moe(x, topk_ids, topk_weights, arguments, shared_weights, options)
    raise TypeError(f"x: expected a torch tensor or a NumPy array, found {type(x).__name__}")


def _meet_torch() -> None:
    global _torch_moe, _run_known, _is_compiling
    import torch

    from . import _torch

    _torch_moe, _run_known = _torch.moe, _torch.run_known
    _is_compiling = torch.compiler.is_compiling
