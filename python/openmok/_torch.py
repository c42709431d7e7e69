"""`openmok.moe` for torch tensors: the autograd function."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Sequence
import weakref

import numpy as np
import torch

from . import _core
from ._gradients import WeightGradients
from ._operands import Arguments, fields_of
from ._plan import Options, Plan, plan_of
from ._torch_views import detached, stack_views
from ._workspaces import default_group
from .errors import MokShapeError


class _State(NamedTuple):
    """What a call leaves for its backward."""

    workspace: _core.Workspace
    schedule: _core.Schedule
    context: _core.Context | None


class _States:
    """States by number. The number travels in a tensor that autograd saves like any other, so that
    whatever drops or replaces saved tensors (checkpoints) drops the state with it: a state lives as
    long as the storage of its tensor."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}
        self._numbers = itertools.count(1)

    def put(self, state: _State) -> torch.Tensor:
        number = next(self._numbers)
        self._states[number] = state
        memory = np.array([number], np.int64)
        weakref.finalize(memory, self._states.pop, number, None)
        return torch.from_numpy(memory)

    def get(self, number: torch.Tensor) -> _State | None:
        return self._states.get(int(number))

    def __len__(self) -> int:
        return len(self._states)


_states = _States()


def _enqueue_on_current_stream(workspace: _core.Workspace, x: torch.Tensor) -> None:
    if x.is_cuda:
        workspace.set_stream(torch.cuda.current_stream(x.device).cuda_stream)


class _Inputs(NamedTuple):
    """The tensors of a call; weights are plan.operands' tensors."""

    topk_ids: torch.Tensor
    x: torch.Tensor
    topk_weights: torch.Tensor
    shared_weights: torch.Tensor | None
    weights: Sequence[torch.Tensor]

    def library_weights(self, plan: Plan) -> _core.Weights:
        return _core.Weights(
            **fields_of(plan.operands, [detached(w) for w in self.weights], stack_views)
        )

    def library_inputs(self) -> _core.Inputs:
        return _core.Inputs(
            x=detached(self.x),
            topk_weights=detached(self.topk_weights),
            shared_weights=None if self.shared_weights is None else detached(self.shared_weights),
        )


def _tokens_per_expert(state: _State, x: torch.Tensor) -> torch.Tensor:
    if not x.is_cuda:
        return torch.tensor(state.schedule.tokens_per_expert(), dtype=torch.int32)
    rows = state.schedule.tokens_per_expert_device(state.workspace)
    return torch.from_dlpack(rows).reshape(-1).clone()


def _run_forward(
    plan: Plan, inputs: _Inputs, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, _State]:
    x = inputs.x
    weights, own_inputs = inputs.library_weights(plan), inputs.library_inputs()
    workspace = plan.workspace(x.shape[0])
    _enqueue_on_current_stream(workspace, x)
    schedule = _core.Schedule(workspace, inputs.topk_ids)
    context = _core.Context() if keep else None
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _core.forward(workspace, schedule, weights, own_inputs, out, context)
    state = _State(workspace, schedule, context)
    return out, _tokens_per_expert(state, x), state


def _recomputed(plan: Plan, inputs: _Inputs) -> _State:
    """The state again, where what saved the tensors kept their values but not the state's own."""
    workspace = plan.workspace(inputs.x.shape[0])
    _enqueue_on_current_stream(workspace, inputs.x)
    state = _State(workspace, _core.Schedule(workspace, inputs.topk_ids), _core.Context())
    _core.recompute(
        workspace,
        state.schedule,
        inputs.library_weights(plan),
        inputs.library_inputs(),
        state.context,
    )
    return state


class _Moe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, topk_ids, x, topk_weights, shared_weights, *weights):
        inputs = _Inputs(topk_ids, x, topk_weights, shared_weights, weights)
        out, tokens_per_expert, state = _run_forward(plan, inputs, keep=True)
        ctx.plan = plan
        # The leaves themselves: a saved tensor may come back as another object, without main_grad.
        ctx.leaves = [w if w.is_leaf and w.requires_grad else None for w in weights]
        ctx.save_for_backward(
            _states.put(state), topk_ids, x, topk_weights, shared_weights, *weights
        )
        ctx.mark_non_differentiable(tokens_per_expert)
        ctx.set_materialize_grads(False)
        return out, tokens_per_expert

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out, _):
        num_weights = len(ctx.leaves)
        if d_out is None:
            return (None,) * (5 + num_weights)
        number, topk_ids, x, topk_weights, shared_weights, *weights = ctx.saved_tensors
        inputs = _Inputs(topk_ids, x, topk_weights, shared_weights, weights)
        state = _states.get(number) or _recomputed(ctx.plan, inputs)
        needs = ctx.needs_input_grad

        d_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if needs[2] else None
        d_w = torch.empty_like(topk_weights) if needs[3] else None
        d_s = torch.empty_like(shared_weights) if needs[4] else None
        gradients = WeightGradients(ctx.plan.operands, weights, ctx.leaves, needs[5:])
        _enqueue_on_current_stream(state.workspace, x)
        _core.backward(
            state.workspace,
            (
                state.schedule,
                inputs.library_weights(ctx.plan),
                inputs.library_inputs(),
                state.context,
            ),
            d_out if d_out.is_contiguous() else d_out.contiguous(),
            _core.InputGrads(x=d_x, topk_weights=d_w, shared_weights=d_s),
            gradients.library_gradients(),
        )
        return (None, None, d_x, d_w, d_s, *gradients.finish())


def _require_dtypes(tensors: dict[str, torch.Tensor], allowed: tuple[torch.dtype, ...]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a torch tensor, found {type(tensor).__name__}")
        if tensor.dtype not in allowed:
            expected = " or ".join(str(dtype) for dtype in allowed)
            raise MokShapeError(f"{name}: expected dtype {expected}, found {tensor.dtype}")


@torch.compiler.disable
def moe(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    arguments: Arguments,
    shared_weights: torch.Tensor | None,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    # Conversions to F32 would turn any type into one that the library takes: look before.
    floats = (torch.bfloat16, torch.float32)
    _require_dtypes({"x": x, "topk_weights": topk_weights}, floats)
    _require_dtypes({"topk_ids": topk_ids}, (torch.int32, torch.int64))
    if shared_weights is not None:
        _require_dtypes({"shared_weights": shared_weights}, floats)
        shared_weights = shared_weights.float().contiguous()
    topk_weights = topk_weights.float().contiguous()

    index = x.device.index if x.is_cuda else None
    plan = plan_of(x, topk_ids, arguments, options.group or default_group(index), options)
    inputs = _Inputs(topk_ids.contiguous(), x, topk_weights, shared_weights, arguments.tensors)
    differentiable = [x, topk_weights, *arguments.tensors]
    if shared_weights is not None:
        differentiable.append(shared_weights)
    if torch.is_grad_enabled() and any(t.requires_grad for t in differentiable):
        return _Moe.apply(plan, *inputs[:4], *arguments.tensors)
    out, tokens_per_expert, _ = _run_forward(plan, inputs, keep=False)
    return out, tokens_per_expert
