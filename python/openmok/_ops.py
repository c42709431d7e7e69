"""The operators openmok::moe and openmok::moe_backward of torch.library.

moe takes the tensors of a call and Scalars, and with `keep` returns also what the backward needs:
the bytes of schedule and context, ordinary tensors that autograd saves like the inputs. So hooks on
saved tensors (checkpoints, offloading) see everything that a call keeps, and nothing is kept where
`keep` is false. A second derivative is not there.
"""

from __future__ import annotations

from typing import Any

import torch

from ._autograd import backward_of, keep_for_backward
from ._calls import Call, Scalars, Tensors, call_plan_of, known_call_plan_of
from ._gradient_targets import GradientTargets
from .errors import MokError

_CALL = (
    "Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor? shared_weights, Tensor[] weights, "
    "str group, str layout, float[] activation, int num_experts, int[] tuning"
)
_NUM_TENSORS, _NUM_SCALARS = len(Tensors._fields), len(Scalars._fields)

_library = torch.library.Library("openmok", "DEF")
_library.define(
    f"moe({_CALL}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"moe_backward({_CALL}, Tensor d_out, Tensor schedule, Tensor context, bool[] needs)"
    " -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _parts_of(arguments: tuple[Any, ...]) -> tuple[Tensors, Scalars]:
    tensors = Tensors(*arguments[:_NUM_TENSORS])
    scalars = arguments[_NUM_TENSORS : _NUM_TENSORS + _NUM_SCALARS]
    group, layout, activation, num_experts, tuning = scalars
    return tensors, Scalars(group, layout, tuple(activation), num_experts, tuple(tuning))


def _call_of(arguments: tuple[Any, ...]) -> Call:
    tensors, scalars = _parts_of(arguments)
    return Call(tensors, known_call_plan_of(tensors, scalars))


def _fake_call_of(arguments: tuple[Any, ...]) -> Call:
    """Of sizes that may be symbols."""
    tensors, scalars = _parts_of(arguments)
    return Call(tensors, call_plan_of(tensors, scalars))


# ---- moe --------------------------------------------------------------------------------------
def _moe(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, keep = _call_of(arguments), arguments[-1]
    out, rows, schedule, context = call.forward(keep)
    if keep:
        return out, rows, schedule, context
    return out, rows, call.empty_block(), call.empty_block()


def _moe_fake(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, keep = _fake_call_of(arguments), arguments[-1]
    x = call.tensors.x
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = torch.empty((call.layer.num_local_experts,), dtype=torch.int32, device=x.device)
    if keep:
        return out, rows, call.schedule_block(), call.context_block()
    return out, rows, call.empty_block(), call.empty_block()


# ---- moe_backward: the tensors of GradientTargets, empty ones for those that are not needed ---
def _moe_backward(*arguments: Any) -> list[torch.Tensor]:
    call, needs = _call_of(arguments), arguments[-1]
    targets = GradientTargets(call, needs, [None] * len(call.tensors.weights))
    return _without_none(call, targets.run(*arguments[-4:-1]))


def _moe_backward_fake(*arguments: Any) -> list[torch.Tensor]:
    call, needs = _fake_call_of(arguments), arguments[-1]
    targets = GradientTargets(call, needs, [None] * len(call.tensors.weights))
    targets.weights.allocate()
    return _without_none(call, targets.tensors())


def _without_none(call: Call, gradients: list[torch.Tensor | None]) -> list[torch.Tensor]:
    return [call.tensors.x.new_empty((0,)) if g is None else g for g in gradients]


# ---- autograd ---------------------------------------------------------------------------------
def _keep_for_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]
) -> None:
    tensors, scalars = _parts_of(inputs)
    _, rows, schedule, context = output
    ctx.keep = inputs[-1]
    keep_for_backward(ctx, call_plan_of(tensors, scalars), tensors, (schedule, context))
    ctx.mark_non_differentiable(rows, schedule, context)


def _backward(ctx: Any, d_out: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    no_scalars = (None,) * (_NUM_SCALARS + 1)
    if d_out is None:
        return None, None, None, None, [None] * len(ctx.leaves), *no_scalars
    if not ctx.keep:
        raise MokError("openmok::moe: expected keep=True for a backward, found keep=False")
    need_x, _, need_topk_weights, need_shared_weights, need_weights = ctx.needs_input_grad[:5]
    needs = [need_x, need_topk_weights, need_shared_weights, *need_weights]
    d_x, d_topk_weights, d_shared_weights, *d_weights = backward_of(ctx, d_out, needs, True)
    return d_x, None, d_topk_weights, d_shared_weights, d_weights, *no_scalars


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    raise MokError(
        "openmok::moe: expected a first derivative, found a second one, which is not there"
    )


for _device in ("CPU", "CUDA"):
    _library.impl("moe", _moe, _device)
    _library.impl("moe_backward", _moe_backward, _device)
torch.library.register_fake("openmok::moe", _moe_fake, lib=_library)
torch.library.register_fake("openmok::moe_backward", _moe_backward_fake, lib=_library)
torch.library.register_autograd(
    "openmok::moe", _backward, setup_context=_keep_for_backward, lib=_library
)
torch.library.register_autograd("openmok::moe_backward", _no_second_derivative, lib=_library)
