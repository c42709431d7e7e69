"""The operators openmok::moe and openmok::moe_backward of torch.library.

moe takes the tensors of a call and Scalars, and with `keep` returns also what the backward needs:
the bytes of schedule and context, an ordinary tensor that autograd saves like the inputs. So hooks on
saved tensors (checkpoints, offloading) see everything that a call keeps, and nothing is kept where
`keep` is false. A second derivative is not there.
"""

from __future__ import annotations

from typing import Any

import torch

from ._autograd import Kept, backward_of, leaves_of
from ._calls import CallPlan, Scalars, Tensors, call_plan_of, plan_of_scalars
from ._gradients import Gradients
from .errors import MokError

_CALL = (
    "Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor? shared_weights, Tensor[] weights, "
    "str group, str layout, float[] activation, str precision, int num_experts, int[] tuning"
)
_NUM_TENSORS, _NUM_SCALARS = len(Tensors._fields), len(Scalars._fields)

_library = torch.library.Library("openmok", "DEF")
_library.define(
    f"moe({_CALL}, bool keep) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"moe_backward({_CALL}, Tensor d_out, Tensor kept, bool[] needs) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _parts_of(arguments: tuple[Any, ...]) -> tuple[Tensors, Scalars]:
    tensors = Tensors(*arguments[:_NUM_TENSORS])
    scalars = arguments[_NUM_TENSORS : _NUM_TENSORS + _NUM_SCALARS]
    group, layout, activation, precision, num_experts, tuning = scalars
    activation, tuning = tuple(activation), tuple(tuning)
    return tensors, Scalars(group, layout, activation, precision, num_experts, tuning)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty((0,), dtype=torch.uint8, device=like.device)


# ---- moe --------------------------------------------------------------------------------------
def _moe(*arguments: Any) -> tuple[torch.Tensor, ...]:
    tensors, scalars = _parts_of(arguments)
    keep = arguments[-1]
    out, rows, kept = plan_of_scalars(tensors, scalars).forward(*tensors, keep)
    return out, rows, kept if keep else _empty(out)


def _moe_fake(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Of sizes that may be symbols."""
    tensors, scalars = _parts_of(arguments)
    plan, x = call_plan_of(tensors, scalars), tensors.x
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = torch.empty((plan.layer.num_local_experts,), dtype=torch.int32, device=x.device)
    if not arguments[-1]:
        return out, rows, _empty(x)
    bytes_kept = plan.block_bytes(x.shape[0], True)
    return out, rows, torch.empty((bytes_kept,), dtype=torch.uint8, device=x.device)


# ---- moe_backward: the gradients of x, topk_weights, shared_weights and of each operand, empty
# ---- tensors for those that are not needed ------------------------------------------------------
def _without_none(
    tensors: Tensors, gradients: list[torch.Tensor | None]
) -> list[torch.Tensor]:
    return [tensors.x.new_empty((0,)) if g is None else g for g in gradients]


def _moe_backward(*arguments: Any) -> list[torch.Tensor]:
    tensors, scalars = _parts_of(arguments)
    d_out, kept, needs = arguments[-3:]
    plan = plan_of_scalars(tensors, scalars)
    gradients = Gradients(plan, tensors, needs, [None] * len(tensors.weights))
    targets = gradients.allocate()
    plan.backward(tensors, d_out.contiguous(), kept, gradients.inputs, targets)
    return _without_none(tensors, [*gradients.inputs, *targets.tensors])


def _moe_backward_fake(*arguments: Any) -> list[torch.Tensor]:
    tensors, scalars = _parts_of(arguments)
    plan, needs = call_plan_of(tensors, scalars), arguments[-1]
    gradients = Gradients(plan, tensors, needs, [None] * len(tensors.weights))
    return _without_none(tensors, [*gradients.inputs, *gradients.allocate().tensors])


# ---- autograd ---------------------------------------------------------------------------------
def _keep_for_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]
) -> None:
    tensors, scalars = _parts_of(inputs)
    _, rows, kept = output
    ctx.keep = inputs[-1]
    ctx.call = Kept(call_plan_of(tensors, scalars), leaves_of(tensors.weights), None)
    ctx.save_for_backward(kept, *tensors[:-1], *tensors.weights)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(rows, kept)


def _backward(ctx: Any, d_out: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    no_scalars = (None,) * (_NUM_SCALARS + 1)
    if d_out is None:
        return None, None, None, None, [None] * len(ctx.call.leaves), *no_scalars
    if not ctx.keep:
        raise MokError("openmok::moe: expected keep=True for a backward, found keep=False")
    need_x, _, need_topk_weights, need_shared_weights, need_weights = ctx.needs_input_grad[:5]
    needs = [need_x, need_topk_weights, need_shared_weights, *need_weights]
    gradients = backward_of(ctx.saved_tensors, ctx.call, d_out, needs, True)
    d_x, d_topk_weights, d_shared_weights, *d_weights = gradients
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
