"""One call of the layer on torch tensors: no autograd here."""

from __future__ import annotations

from dataclasses import dataclass
import functools
from typing import NamedTuple, Sequence

import torch

from . import _core
from ._groups import group_of, place_of
from ._operands import Arguments, Operand, layout_of, operands_of
from ._plan import Options, Plan, plan_of
from ._raw import raw, raw_or_none, raw_weights_of
from ._sizes import Extent, context_bytes, schedule_bytes
from .shape import Activation, Tuning


class Scalars(NamedTuple):
    """What a call has besides tensors, as an operator's schema can hold it."""

    group: str  # by name
    layout: str  # of the operands
    activation: tuple[float, ...]  # limit, alpha, beta
    num_experts: int  # 0: this rank's times the ranks
    tuning: tuple[int, ...]  # in the order of Tuning's fields


def scalars_of(group: str, operands: Sequence[Operand], options: Options) -> Scalars:
    activation = Activation.of(options.activation, options.limit, options.alpha)
    return Scalars(
        group,
        layout_of(operands),
        (activation.limit, activation.alpha, activation.beta),
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
    )


@functools.lru_cache(maxsize=256)
def known_scalars_of(group: str, layout: str, options: Options) -> Scalars:
    """scalars_of, for callers that no compiler follows."""
    return scalars_of(group, operands_of(layout), options)


class Tensors(NamedTuple):
    x: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    shared_weights: torch.Tensor | None
    weights: Sequence[torch.Tensor]


@dataclass(frozen=True, eq=False)
class CallPlan:
    """What a call is, without its tensors."""

    scalars: Scalars
    num_ranks: int
    layer: Plan


def call_plan_of(tensors: Tensors, scalars: Scalars) -> CallPlan:
    tuning = scalars.tuning
    num_ranks = place_of(scalars.group)[1]
    options = Options(
        activation=Activation(*scalars.activation),
        tuning=Tuning(*tuning[:3], bool(tuning[3]), *tuning[4:]),
        num_experts=scalars.num_experts or None,
    )
    arguments = Arguments(list(operands_of(scalars.layout)), list(tensors.weights))
    layer = plan_of(tensors.x, tensors.topk_ids, arguments, num_ranks, options)
    return CallPlan(scalars, num_ranks, layer)


_plans: dict[tuple, CallPlan] = {}
_MOST_PLANS = 1024


def known_call_plan_of(tensors: Tensors, scalars: Scalars) -> CallPlan:
    """call_plan_of, made once for equal scalars and shapes; of sizes that are no symbols. The
    number of tokens is no part of it."""
    x, topk_ids = tensors.x.shape, tensors.topk_ids.shape
    if len(x) != 2 or len(topk_ids) != 2 or x[0] != topk_ids[0]:
        return call_plan_of(tensors, scalars)  # says what is wrong
    key = (scalars, x[1], topk_ids[1], *[w.shape for w in tensors.weights])
    plan = _plans.get(key)
    # A group's name may come to mean another one of another size.
    if plan is None or plan.num_ranks != place_of(scalars.group)[1]:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = call_plan_of(tensors, scalars)
    return plan


class HeldCall(NamedTuple):
    """What stays between backward_input and wgrad."""

    workspace: _core.Workspace
    schedule: _core.Schedule
    context: _core.Context
    d_out: torch.Tensor
    blocks: tuple[torch.Tensor, torch.Tensor]


class Call:
    """A call, ready to be run. Makes the group and the workspace only when it is."""

    def __init__(self, tensors: Tensors, plan: CallPlan):
        self.tensors, self.plan, self.layer = tensors, plan, plan.layer

    def _extent(self) -> Extent:
        tokens = self.tensors.x.shape[0]
        return Extent(self.plan.num_ranks, self.layer.num_local_experts, tokens)

    def schedule_block(self) -> torch.Tensor:
        return self._bytes(schedule_bytes(self._extent(), self.layer.shape, self.layer.tuning))

    def context_block(self) -> torch.Tensor:
        return self._bytes(context_bytes(self._extent(), self.layer.shape, self.layer.tuning))

    def empty_block(self) -> torch.Tensor:
        return self._bytes(0)

    def _bytes(self, number: int) -> torch.Tensor:
        return torch.empty((number,), dtype=torch.uint8, device=self.tensors.x.device)

    # ---- Running ------------------------------------------------------------------------------
    def _workspace(self) -> _core.Workspace:
        """The workspace, on the current stream."""
        x = self.tensors.x
        device = x.get_device()
        group = group_of(self.plan.scalars.group, device if x.is_cuda else None)
        workspace = self.layer.workspace(group, x.shape[0])
        if x.is_cuda:
            workspace.set_stream(torch.cuda.current_stream(device).cuda_stream)
        return workspace

    def _library_inputs(self) -> _core.Inputs:
        t = self.tensors
        return _core.Inputs(
            x=raw("x", t.x),
            topk_weights=raw("topk_weights", t.topk_weights),
            shared_weights=raw_or_none("shared_weights", t.shared_weights),
        )

    def forward(self, keep: bool) -> tuple[torch.Tensor, ...]:
        """out [T, H], tokens_per_expert [E_l], and with keep the bytes of schedule and context."""
        t = self.tensors
        fields, alive = raw_weights_of(self.layer.operands, t.weights)
        weights, inputs = _core.Weights(**fields), self._library_inputs()
        workspace = self._workspace()
        table = self.schedule_block()
        schedule = _core.Schedule(workspace, raw("topk_ids", t.topk_ids), *_place(table))
        kept, context = None, None
        if keep:
            kept = self.context_block()
            context = _core.Context(*_place(kept))
        out = torch.empty(t.x.shape, dtype=t.x.dtype, device=t.x.device)
        _core.forward(workspace, schedule, weights, inputs, raw("out", out), context)
        del alive
        rows = _rows_of_experts(schedule, table)
        return (out, rows, table, kept) if keep else (out, rows, None, None)

    def backward(
        self,
        held: HeldCall,
        input_grads: _core.InputGrads,
        weight_grads: _core.WeightGrads | None,
    ) -> None:
        """Without weight_grads those are left to wgrad, which takes the same `held`."""
        saved, alive = self._saved(held)
        d_out = raw("d_out", held.d_out)
        if weight_grads is None:
            _core.backward_input(held.workspace, saved, d_out, input_grads)
        else:
            _core.backward(held.workspace, saved, d_out, input_grads, weight_grads)
        del alive

    def wgrad(self, held: HeldCall, weight_grads: _core.WeightGrads) -> None:
        saved, alive = self._saved(held)
        self._workspace()  # on the stream that is current now
        _core.wgrad(held.workspace, saved, raw("d_out", held.d_out), weight_grads)
        del alive

    def hold(self, d_out: torch.Tensor, blocks: tuple[torch.Tensor, torch.Tensor]) -> HeldCall:
        """From the blocks of a forward, or copies of them."""
        workspace = self._workspace()
        tokens = self.tensors.x.shape[0]
        schedule = _core.Schedule.restored(workspace, tokens, *_place(blocks[0]))
        context = _core.Context.restored(workspace, schedule, *_place(blocks[1]))
        return HeldCall(workspace, schedule, context, d_out.contiguous(), blocks)

    def _saved(self, held: HeldCall) -> tuple[tuple, list[torch.Tensor]]:
        fields, alive = raw_weights_of(self.layer.operands, self.tensors.weights)
        weights = _core.Weights(**fields)
        return (held.schedule, weights, self._library_inputs(), held.context), alive


def _place(block: torch.Tensor) -> tuple[int, int]:
    return block.data_ptr(), block.numel()


def _rows_of_experts(schedule: _core.Schedule, table: torch.Tensor) -> torch.Tensor:
    """[E_l] int32: read out of the schedule's block, in the stream's order."""
    address, num_experts, stride = schedule.tokens_per_expert_place()
    at = (address - table.data_ptr()) // 4
    return table.view(torch.int32).as_strided((num_experts,), (stride,), at).clone()
