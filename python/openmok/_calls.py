"""One call of the layer on torch tensors: no autograd here."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import torch

from . import _core, _dump, _fp8, _workspaces
from ._groups import group_is, group_of, place_of
from ._operands import Arguments, Operand, core_operands_of, layout_of, operands_of
from ._plan import Options, Plan, plan_of
from ._sizes import Extent, context_bytes, schedule_bytes
from ._torch_views import stack_views
from .errors import MokError, MokShapeError, MokTimeout
from .shape import Activation, Tuning


class Scalars(NamedTuple):
    """What a call has besides tensors, as an operator's schema can hold it."""

    group: str  # by name
    layout: str  # of the operands
    activation: tuple[float, ...]  # limit, alpha, beta
    precision: str
    num_experts: int  # 0: this rank's times the ranks
    tuning: tuple[int, ...]  # in the order of Tuning's fields


def scalars_of(group: str, operands: Sequence[Operand], options: Options) -> Scalars:
    activation = Activation.of(options.activation, options.limit, options.alpha)
    return Scalars(
        group,
        layout_of(operands),
        (activation.limit, activation.alpha, activation.beta),
        options.precision,
        options.num_experts or 0,
        _tuning_numbers(options.tuning or Tuning()),
    )


def _tuning_numbers(t: Tuning) -> tuple[int, ...]:
    return (
        t.minibatch_rows,
        t.macrobatch_rows,
        t.context_rows,
        int(t.keep_x),
        t.max_workers,
        t.max_tokens,
        int(t.fp8_dispatch),
    )


def _tuning_of(numbers: Sequence[int]) -> Tuning:
    minibatch, macrobatch, context, keep_x, workers, tokens, fp8_dispatch = numbers
    return Tuning(
        minibatch, macrobatch, context, bool(keep_x), workers, tokens, bool(fp8_dispatch)
    )


class Tensors(NamedTuple):
    x: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    shared_weights: torch.Tensor | None
    weights: Sequence[torch.Tensor]


InputGrads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


OVERWRITE_BOTH = _core.GradMode.Overwrite, _core.GradMode.Overwrite
_ACCUMULATE_BOTH = _core.GradMode.Accumulate, _core.GradMode.Accumulate


class WeightTargets(NamedTuple):
    """Where the gradients of the weights go: a tensor of each operand, or None."""

    tensors: list[torch.Tensor | None]
    modes: tuple[_core.GradMode, _core.GradMode]  # of the routed experts, of the shared expert


class _Place(NamedTuple):
    """Where calls run on one device."""

    epoch: int  # of the workspaces
    max_tokens: int
    workspace: _core.Workspace
    # Of no elements, so that no allocator counts them: of the types of rows and blocks.
    int32: torch.Tensor
    uint8: torch.Tensor


class CallPlan:
    """What a call is, without its tensors, and how it is run. Makes the group and the workspace
    only when a call is."""

    def __init__(self, scalars: Scalars, num_ranks: int, layer: Plan):
        self.scalars, self.num_ranks, self.layer = scalars, num_ranks, layer
        self.stacks_experts = any([o.per_expert for o in layer.operands])
        self.is_fp8 = layer.shape.is_fp8
        self._places: dict[int, _Place] = {}  # by device
        self._block_sizes: dict[int, tuple[int, int]] = {}
        self._core_operands: _core.Operands | None = None

    # ---- Sizes, which may be symbols of a compiler ------------------------------------------------
    def block_bytes(self, num_tokens: int, keeps_context: bool) -> int:
        """Bytes of a call's schedule and, where the backward needs it, its context behind it."""
        layer = self.layer
        extent = Extent(self.num_ranks, layer.num_local_experts, num_tokens)
        schedule = schedule_bytes(extent, layer.shape, layer.tuning)
        if not keeps_context:
            return schedule
        return schedule + context_bytes(extent, layer.shape, layer.tuning)

    def _known_block_bytes(self, num_tokens: int, keeps_context: bool) -> int:
        sizes = self._block_sizes.get(num_tokens)
        if sizes is None:
            if len(self._block_sizes) >= 4096:
                self._block_sizes.clear()
            sizes = self.block_bytes(num_tokens, False), self.block_bytes(num_tokens, True)
            self._block_sizes[num_tokens] = sizes
        return sizes[keeps_context]

    # ---- Running ----------------------------------------------------------------------------------
    def workspace(self, x: torch.Tensor) -> _core.Workspace:
        return self._place(x, x.shape[0]).workspace

    def _place(self, x: torch.Tensor, num_tokens: int) -> _Place:
        device = x.get_device()
        known = self._places.get(device)
        if (
            known is not None
            and known.epoch == _workspaces.epoch
            and num_tokens <= known.max_tokens
        ):
            group_name = self.scalars.group
            if not group_name or group_is(group_name, device):
                return known
        group = group_of(self.scalars.group, device if device >= 0 else None)
        found = self.layer.workspace(group, num_tokens)
        made = self._places[device] = _Place(
            _workspaces.epoch,
            found.max_tokens,
            found,
            torch.empty(0, dtype=torch.int32, device=x.device),
            torch.empty(0, dtype=torch.uint8, device=x.device),
        )
        return made

    def operands(self) -> _core.Operands:
        if self._core_operands is None:
            self._core_operands = core_operands_of(self.layer.operands)
        return self._core_operands

    def weights(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One tensor of each operand."""
        if not self.stacks_experts:
            return list(weights)
        at, stacked = 0, []
        for operand in self.layer.operands:
            own = list(weights[at : at + operand.count])
            at += operand.count
            stacked.append(stack_views(operand.name, own) if operand.per_expert else own[0])
        return stacked

    def fp8(
        self, workspace: _core.Workspace, x: torch.Tensor, weights: list[Any], is_forward: bool
    ) -> _core.Fp8Weights:
        """The weights (one tensor of each operand) quantised, on x's stream."""
        routed = [w for o, w in zip(self.layer.operands, weights) if o.is_expert_matrix]
        return _fp8.quantized(
            workspace,
            routed,
            lambda to: _core.moe_quantize(workspace, self.operands(), x, weights, to),
            is_forward,
        )

    def finish(self, workspace: _core.Workspace, x: torch.Tensor) -> None:
        """Under MOK_DUMP: waits for a call, so that what went wrong in it is raised here."""
        if x.is_cuda and not torch.cuda.is_current_stream_capturing():
            workspace.synchronize()

    def forward(
        self,
        x: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        shared_weights: torch.Tensor | None,
        weights: Sequence[torch.Tensor],
        keeps_context: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """out [T, H], tokens_per_expert [E_l], and the block that a backward needs."""
        num_tokens = x.shape[0]
        try:
            place = self._place(x, num_tokens)
            workspace = place.workspace
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            rows = place.int32.new_empty(self.layer.num_local_experts)
            kept = place.uint8.new_empty(self._known_block_bytes(num_tokens, keeps_context))
            stacked = self.weights(weights)
            _core.moe_forward(
                workspace,
                self._core_operands or self.operands(),
                (x, topk_weights, shared_weights),
                topk_ids,
                stacked,
                out,
                rows,
                kept,
                keeps_context,
                self.fp8(workspace, x, stacked, True) if self.is_fp8 else None,
            )
            if _dump.FOLDER:
                self.finish(workspace, x)
        except _dump.ERRORS as error:
            t = Tensors(x, topk_ids, topk_weights, shared_weights, weights)
            dump_of_call(error, "forward", t, self.scalars)
            raise
        return out, rows, kept

    def backward(
        self,
        t: Tensors,
        d_out: torch.Tensor,
        kept: torch.Tensor,
        d_inputs: InputGrads,
        targets: WeightTargets,
    ) -> None:
        try:
            workspace = self._place(t.x, t.x.shape[0]).workspace
            weights = self.weights(t.weights)
            _core.moe_backward(
                workspace,
                self._core_operands or self.operands(),
                (t.x, t.topk_weights, t.shared_weights),
                weights,
                d_out,
                kept,
                d_inputs,
                *targets,
                self.fp8(workspace, t.x, weights, False) if self.is_fp8 else None,
            )
            if _dump.FOLDER:
                self.finish(workspace, t.x)
        except _dump.ERRORS as error:
            dump_of_call(error, "backward", t, self.scalars, d_out)
            raise

    def gradients(
        self,
        saved: Sequence[Any],
        d_out: torch.Tensor,
        needs: Sequence[bool],
        main_grads: list[torch.Tensor | None] | None,
    ) -> tuple[torch.Tensor | None, ...]:
        """What an autograd.Function of (a call, x, topk_weights, shared_weights, each weight) returns
        from its backward: None, then gradients in new tensors. For operands of one tensor each.

        saved: `forward`'s block, x, topk_ids, topk_weights, shared_weights, each weight.
        needs: of each of the function's arguments.
        main_grads: the weights' gradients are added to these instead, and are not in what returns.
        """
        kept, x, topk_ids, topk_weights, shared_weights, *weights = saved
        _, need_x, need_topk_weights, need_shared_weights, *need_weights = needs
        empty, form = torch.empty_like, torch.contiguous_format
        d_x = empty(x, memory_format=form) if need_x else None
        d_topk_weights = empty(topk_weights, memory_format=form) if need_topk_weights else None
        d_shared_weights = empty(shared_weights, memory_format=form) if need_shared_weights else None
        if main_grads is None:
            d_weights = [
                empty(weight, memory_format=form) if need else None
                for weight, need in zip(weights, need_weights)
            ]
        else:
            d_weights = main_grads
        try:
            workspace = self._place(x, x.shape[0]).workspace
            _core.moe_backward(
                workspace,
                self._core_operands or self.operands(),
                (x, topk_weights, shared_weights),
                weights,
                d_out.contiguous(),
                kept,
                (d_x, d_topk_weights, d_shared_weights),
                d_weights,
                OVERWRITE_BOTH if main_grads is None else _ACCUMULATE_BOTH,
                self.fp8(workspace, x, weights, False) if self.is_fp8 else None,
            )
            if _dump.FOLDER:
                self.finish(workspace, x)
        except _dump.ERRORS as error:
            t = Tensors(x, topk_ids, topk_weights, shared_weights, weights)
            dump_of_call(error, "backward", t, self.scalars, d_out)
            raise
        d_inputs = None, d_x, d_topk_weights, d_shared_weights
        return (*d_inputs, *d_weights) if main_grads is None else d_inputs

    def backward_input(
        self, t: Tensors, d_out: torch.Tensor, kept: torch.Tensor, d_inputs: InputGrads
    ) -> HeldCall:
        try:
            workspace, weights = self.workspace(t.x), self.weights(t.weights)
            restored = _core.moe_backward_input(
                workspace,
                self.operands(),
                (t.x, t.topk_weights, t.shared_weights),
                weights,
                d_out,
                kept,
                d_inputs,
                self.fp8(workspace, t.x, weights, False) if self.is_fp8 else None,
            )
            if _dump.FOLDER:
                self.finish(workspace, t.x)
        except _dump.ERRORS as error:
            dump_of_call(error, "backward_input", t, self.scalars, d_out)
            raise
        return HeldCall(self, t, workspace, restored, d_out, kept)


class HeldCall(NamedTuple):
    """What stays between backward_input and wgrad."""

    plan: CallPlan
    tensors: Tensors
    workspace: _core.Workspace
    restored: _core.Restored
    d_out: torch.Tensor
    kept: torch.Tensor

    def wgrad(self, targets: WeightTargets, is_shared_alone: bool) -> None:
        t, is_fp8 = self.tensors, self.plan.is_fp8
        try:
            weights = self.plan.weights(t.weights)
            _core.moe_wgrad(
                self.workspace,
                self.plan.operands(),
                (t.x, t.topk_weights, t.shared_weights),
                weights,
                self.d_out,
                self.restored,
                *targets,
                is_shared_alone,
                self.plan.fp8(self.workspace, t.x, weights, False) if is_fp8 else None,
            )
            if _dump.FOLDER:
                self.plan.finish(self.workspace, t.x)
        except _dump.ERRORS as error:
            dump_of_call(error, "wgrad", t, self.plan.scalars, self.d_out)
            raise


def dump_of_call(
    error: MokError | MokShapeError | MokTimeout,
    call: str,
    t: Tensors,
    scalars: Scalars,
    d_out: torch.Tensor | None = None,
) -> None:
    """Under MOK_DUMP: keeps the tensors of a call that failed."""
    inputs = {
        "hidden_states": t.x,
        "topk_ids": t.topk_ids,
        "topk_weights": t.topk_weights,
        "shared_weights": t.shared_weights,
        "grad_output": d_out,
    }
    operands = operands_of(scalars.layout)
    layer = Activation(*scalars.activation), scalars.precision
    _dump.add_to(error, call, scalars.group, *layer, operands, t.weights, inputs)


# ---- Plans ----------------------------------------------------------------------------------------
def call_plan_of(tensors: Tensors, scalars: Scalars) -> CallPlan:
    try:
        return _call_plan_of(tensors, scalars)
    except _dump.ERRORS as error:
        dump_of_call(error, "forward", tensors, scalars)
        raise


def _call_plan_of(tensors: Tensors, scalars: Scalars) -> CallPlan:
    num_ranks = place_of(scalars.group)[1]
    options = Options(
        activation=Activation(*scalars.activation),
        precision=scalars.precision,
        tuning=_tuning_of(scalars.tuning),
        num_experts=scalars.num_experts or None,
    )
    arguments = Arguments(list(operands_of(scalars.layout)), list(tensors.weights), scalars.layout)
    layer = plan_of(tensors.x, tensors.topk_ids, arguments, num_ranks, options)
    return CallPlan(scalars, num_ranks, layer)


_plans: dict[tuple[Any, ...], CallPlan] = {}
_MOST_PLANS = 1024


def known_call_plan_of(
    tensors: Tensors, group: str, arguments: Arguments, options: Options
) -> CallPlan:
    """The plan of a call, made once for equal options and shapes; of sizes that are no symbols.
    The number of tokens is no part of it."""
    x, topk_ids = tensors.x.shape, tensors.topk_ids.shape
    if len(x) != 2 or len(topk_ids) != 2 or x[0] != topk_ids[0]:
        # Says what is wrong.
        return call_plan_of(tensors, scalars_of(group, arguments.operands, options))
    key = (
        group,
        arguments.layout,
        options.activation,
        options.limit,
        options.alpha,
        options.precision,
        options.tuning,
        options.num_experts,
        x[1],
        topk_ids[1],
        *[w.shape for w in tensors.weights],
    )
    plan = _plans.get(key)
    # A group's name may come to mean another one of another size.
    if plan is None or (group and plan.num_ranks != place_of(group)[1]):
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        scalars = scalars_of(group, arguments.operands, options)
        plan = _plans[key] = call_plan_of(tensors, scalars)
    return plan


_plans_of_scalars: dict[tuple[Any, ...], CallPlan] = {}


def plan_of_scalars(tensors: Tensors, scalars: Scalars) -> CallPlan:
    """The same for the operators, which know a call's Scalars."""
    x, topk_ids = tensors.x.shape, tensors.topk_ids.shape
    if x[:1] != topk_ids[:1]:
        return call_plan_of(tensors, scalars)  # says what is wrong
    key = (scalars, x[1:], topk_ids[1:], *[w.shape for w in tensors.weights])
    plan = _plans_of_scalars.get(key)
    if plan is None or plan.num_ranks != place_of(scalars.group)[1]:
        if len(_plans_of_scalars) >= _MOST_PLANS:
            _plans_of_scalars.clear()
        plan = _plans_of_scalars[key] = call_plan_of(tensors, scalars)
    return plan
