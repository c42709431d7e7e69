"""The operators openmok::moe and openmok::moe_backward of torch.library.

moe takes the tensors of a call and Scalars, and with `keep` returns also what the backward needs:
the bytes of schedule and context, ordinary tensors that autograd saves like the inputs. So hooks on
saved tensors (checkpoints, offloading) see everything that a call keeps, and nothing is kept where
`keep` is false. A second derivative is not there.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _core
from ._calls import Call, Scalars, Tensors
from ._gradients import WeightGradients
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


def _call_of(arguments: tuple[Any, ...]) -> Call:
    end = _NUM_TENSORS + _NUM_SCALARS
    return Call(Tensors(*arguments[:_NUM_TENSORS]), Scalars(*arguments[_NUM_TENSORS:end]))


# ---- moe --------------------------------------------------------------------------------------
def _moe(*arguments: Any) -> tuple[torch.Tensor, ...]:
    return _call_of(arguments).forward(keep=arguments[-1])


def _moe_fake(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, keep = _call_of(arguments), arguments[-1]
    x = call.tensors.x
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = torch.empty((call.plan.num_local_experts,), dtype=torch.int32, device=x.device)
    if keep:
        return out, rows, call.schedule_block(), call.context_block()
    return out, rows, call.empty_block(), call.empty_block()


# ---- moe_backward -----------------------------------------------------------------------------
class _Gradients:
    """Fresh tensors for the gradients that are needed, as moe_backward returns them: those of x,
    topk_weights and shared_weights, then one of each operand; empty ones for the others.

    needs: of x, topk_weights, shared_weights, then of each weight.
    """

    def __init__(self, call: Call, needs: list[bool], leaves: list[torch.Tensor | None]):
        t = call.tensors
        self.inputs = [
            torch.empty(like.shape, dtype=like.dtype, device=like.device) if need else None
            for like, need in zip((t.x, t.topk_weights, t.shared_weights), needs)
        ]
        self.weights = WeightGradients(call.plan.operands, t.weights, leaves, needs[3:])

    def library_input_grads(self) -> _core.InputGrads:
        x, topk_weights, shared_weights = self.inputs
        return _core.InputGrads(x=x, topk_weights=topk_weights, shared_weights=shared_weights)


def _run_backward(
    call: Call, saved: tuple[torch.Tensor, ...], gradients: _Gradients
) -> list[torch.Tensor | None]:
    """saved: d_out, schedule, context."""
    d_out, *blocks = saved
    call.backward(
        d_out,
        tuple(blocks),
        gradients.library_input_grads(),
        gradients.weights.library_gradients(),
    )
    return [*gradients.inputs, *gradients.weights.targets]


def _moe_backward(*arguments: Any) -> list[torch.Tensor]:
    call, needs = _call_of(arguments), arguments[-1]
    gradients = _Gradients(call, needs, [None] * len(call.tensors.weights))
    found = _run_backward(call, arguments[-4:-1], gradients)
    nothing = call.tensors.x.new_empty((0,))
    return [nothing.clone() if g is None else g for g in found]


def _moe_backward_fake(*arguments: Any) -> list[torch.Tensor]:
    call, needs = _call_of(arguments), arguments[-1]
    gradients = _Gradients(call, needs, [None] * len(call.tensors.weights))
    gradients.weights.allocate()
    found = [*gradients.inputs, *gradients.weights.targets]
    return [call.tensors.x.new_empty((0,)) if g is None else g for g in found]


# ---- autograd ---------------------------------------------------------------------------------
def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]):
    *tensors, weights = inputs[:_NUM_TENSORS]
    out, rows, schedule, context = output
    ctx.scalars = Scalars(*inputs[_NUM_TENSORS:-1])
    ctx.keep = inputs[-1]
    # The leaves themselves: a saved tensor may come back as another object, without main_grad.
    ctx.leaves = [w if w.is_leaf and w.requires_grad else None for w in weights]
    ctx.save_for_backward(schedule, context, *tensors, *weights)
    ctx.mark_non_differentiable(rows, schedule, context)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    num_weights = len(ctx.leaves)
    no_scalars = (None,) * (_NUM_SCALARS + 1)
    if d_out is None:
        return None, None, None, None, [None] * num_weights, *no_scalars
    if not ctx.keep:
        raise MokError("openmok::moe: expected keep=True for a backward, found keep=False")
    schedule, context, *tensors = ctx.saved_tensors
    inputs = Tensors(*tensors[: _NUM_TENSORS - 1], tensors[_NUM_TENSORS - 1 :])
    need_x, _, need_topk_weights, need_shared_weights, need_weights = ctx.needs_input_grad[:5]
    needs = [need_x, need_topk_weights, need_shared_weights, *need_weights]
    call = Call(inputs, ctx.scalars)
    saved = (d_out, schedule, context)
    gradients = _Gradients(call, needs, ctx.leaves)
    if gradients.weights.has_main_grads:
        found = _run_backward(call, saved, gradients)
    else:
        found = torch.ops.openmok.moe_backward(*inputs, *ctx.scalars, *saved, needs)
    d_x, d_topk_weights, d_shared_weights, *targets = found
    return (
        d_x if need_x else None,
        None,
        d_topk_weights if need_topk_weights else None,
        d_shared_weights if need_shared_weights else None,
        gradients.weights.finish(targets),
        *no_scalars,
    )


def _no_second_derivative(ctx: Any, *_: Any) -> None:
    raise MokError("openmok::moe: expected a first derivative, found a second one, which is not there")


for _device in ("CPU", "CUDA"):
    _library.impl("moe", _moe, _device)
    _library.impl("moe_backward", _moe_backward, _device)
torch.library.register_fake("openmok::moe", _moe_fake, lib=_library)
torch.library.register_fake("openmok::moe_backward", _moe_backward_fake, lib=_library)
torch.library.register_autograd(
    "openmok::moe", _backward, setup_context=_keep_for_backward, lib=_library
)
torch.library.register_autograd("openmok::moe_backward", _no_second_derivative, lib=_library)
