"""`openmok.moe` for torch tensors: what stands before the operator, and can be compiled with it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from . import _known
from . import _ops  # noqa: F401: registers the operators
from ._autograd import EagerMoe, leaves_of
from ._calls import CallPlan, Tensors, known_call_plan_of, scalars_of
from ._delayed import DelayedWgrad, require_leaves
from ._groups import place_of
from ._operands import Arguments
from ._plan import Options
from .errors import MokShapeError

if torch.distributed.is_available():
    from ._dtensors import local_parts
    from ._process_groups import name_with_torch as name_of
else:
    from ._groups import name_without_torch as name_of

    def local_parts(arguments: Arguments) -> Arguments:
        return arguments

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


_FLOATS = (torch.bfloat16, torch.float32)
_INTEGERS = (torch.int64, torch.int32)


def _require_dtype(name: str, tensor: object, allowed: tuple[torch.dtype, ...]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch tensor, found {type(tensor).__name__}")
    if tensor.dtype not in allowed:
        expected = " or ".join([str(dtype) for dtype in allowed])
        raise MokShapeError(f"{name}: expected dtype {expected}, found {tensor.dtype}")


def _float32(name: str, tensor: torch.Tensor) -> torch.Tensor:
    # A conversion would turn any type into one that the library takes: look before.
    _require_dtype(name, tensor, _FLOATS)
    return tensor.float().contiguous()


def moe(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    shared_weights: torch.Tensor | None,
    arguments: Arguments,
    options: Options,
    weights: _known.Weights | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """weights: by which the call shall be found again."""
    arguments = local_parts(arguments)
    _require_dtype("x", x, _FLOATS)
    _require_dtype("topk_ids", topk_ids, _INTEGERS)
    topk_weights = _float32("topk_weights", topk_weights)
    if shared_weights is not None:
        shared_weights = _float32("shared_weights", shared_weights)
    tensors = Tensors(x, topk_ids.contiguous(), topk_weights, shared_weights, arguments.tensors)
    floating = [x, topk_weights, *arguments.tensors]
    if shared_weights is not None:
        floating.append(shared_weights)
    keep = torch.is_grad_enabled() and any([t.requires_grad for t in floating])
    if torch.compiler.is_compiling():
        if options.delayed_wgrads is not None:
            raise MokShapeError("delayed_wgrads: expected none in a compiled graph, found a list")
        scalars = scalars_of(name_of(options.group), arguments.operands, options)
        return torch.ops.openmok.moe(*tensors, *scalars, keep)[:2]
    return _eager_moe(tensors, floating, arguments, options, keep, weights)


@torch.compiler.disable
def _eager_moe(
    tensors: Tensors,
    floating: list[torch.Tensor],
    arguments: Arguments,
    options: Options,
    keep: bool,
    weights: _known.Weights | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    name = name_of(options.group)
    delayed = options.delayed_wgrads
    is_watched = _get_current_dispatch_mode() is not None or any(
        [type(t) not in _PLAIN_TENSORS for t in floating]
    )
    if is_watched:
        if delayed is not None:
            raise MokShapeError("delayed_wgrads: expected none under a dispatch mode, found a list")
        scalars = scalars_of(name, arguments.operands, options)
        return torch.ops.openmok.moe(*tensors, *scalars, keep)[:2]
    plan = known_call_plan_of(tensors, name, arguments, options)
    # Weights that were computed will hardly come again.
    if weights is not None and all([w.is_leaf for w in tensors.weights]):
        if all([w is None or type(w) in _PLAIN_TENSORS for w in weights]):
            x_and_ids = tensors.x, tensors.topk_ids
            _known.remember(weights, plan, options[:-1], x_and_ids, _PLAIN_TENSORS)
    if keep:
        if delayed is not None:
            require_leaves(tensors.weights)
        rows: list[torch.Tensor] = []
        call = plan, leaves_of(tensors.weights), delayed, rows, tensors.topk_ids
        inputs = tensors.x, tensors.topk_weights, tensors.shared_weights
        out = EagerMoe.apply(call, *inputs, *tensors.weights)
        return out, rows[0]
    return plan.forward(*tensors, keeps_context=False)[:2]


def run_known(
    call: _known.Call,
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    shared_weights: torch.Tensor | None,
    weights: _known.Weights,
    options: tuple[Any, ...],
    delayed: list[DelayedWgrad] | None,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A call like an earlier one; None where it is not quite like it, for `moe` to look into."""
    plan: CallPlan
    plan, known_options, there, likeness, _ = call
    if options != known_options or _get_current_dispatch_mode() is not None:
        return None
    if len(weights) != len(there):
        weights = tuple([weights[i] for i in there])
    requires_grad = likeness.requires_gradients(x, topk_ids, topk_weights, shared_weights, weights)
    if requires_grad is None:
        return None
    group = plan.scalars.group
    if group and place_of(group)[1] != plan.num_ranks:
        return None
    if requires_grad and torch.is_grad_enabled():
        if delayed is not None:
            require_leaves(weights)
        rows: list[torch.Tensor] = []
        call_of = plan, weights, delayed, rows, topk_ids
        out = EagerMoe.apply(call_of, x, topk_weights, shared_weights, *weights)
        return out, rows[0]
    out, tokens_per_expert, _ = plan.forward(
        x, topk_ids, topk_weights, shared_weights, weights, False
    )
    return out, tokens_per_expert
