"""One call of the layer on torch tensors, from what an operator gets: no autograd here."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import torch

from . import _core
from ._groups import group_of, place_of
from ._operands import Arguments, Operand, fields_of, layout_of, operands_of
from ._plan import Options, Plan, plan_of
from ._sizes import Extent, context_bytes, schedule_bytes
from ._torch_views import stack_views
from .shape import Activation, Tuning


class Scalars(NamedTuple):
    """What a call has besides tensors, as an operator's schema can hold it."""

    group: str  # by name
    layout: str  # of the operands
    activation: list[float]  # limit, alpha, beta
    num_experts: int  # 0: this rank's times the ranks
    tuning: list[int]  # in the order of Tuning's fields

    @staticmethod
    def of(group: str, operands: Sequence[Operand], options: Options) -> Scalars:
        activation = Activation.of(options.activation, options.limit, options.alpha)
        t = options.tuning or Tuning()
        return Scalars(
            group,
            layout_of(operands),
            [activation.limit, activation.alpha, activation.beta],
            options.num_experts or 0,
            [
                t.minibatch_rows,
                t.macrobatch_rows,
                t.context_rows,
                int(t.keep_x),
                t.max_workers,
                t.max_tokens,
            ],
        )


class Tensors(NamedTuple):
    x: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    shared_weights: torch.Tensor | None
    weights: Sequence[torch.Tensor]


class Call:
    """A call, ready to be run. Makes the group and the workspace only when it is."""

    def __init__(self, tensors: Tensors, scalars: Scalars):
        self.tensors, self.scalars = tensors, scalars
        self.num_ranks = place_of(scalars.group)[1]
        minibatch, macrobatch, context, keep_x, workers, tokens = scalars.tuning
        options = Options(
            activation=Activation(*scalars.activation),
            tuning=Tuning(minibatch, macrobatch, context, bool(keep_x), workers, tokens),
            num_experts=scalars.num_experts or None,
        )
        arguments = Arguments(list(operands_of(scalars.layout)), list(tensors.weights))
        x, topk_ids = tensors.x, tensors.topk_ids
        self.plan: Plan = plan_of(x, topk_ids, arguments, self.num_ranks, options)

    @property
    def extent(self) -> Extent:
        return Extent(self.num_ranks, self.plan.num_local_experts, self.tensors.x.shape[0])

    def schedule_block(self) -> torch.Tensor:
        return self._bytes(schedule_bytes(self.extent, self.plan.shape, self.plan.tuning))

    def context_block(self) -> torch.Tensor:
        return self._bytes(context_bytes(self.extent, self.plan.shape, self.plan.tuning))

    def empty_block(self) -> torch.Tensor:
        return self._bytes(0)

    def _bytes(self, number: int) -> torch.Tensor:
        return torch.empty((number,), dtype=torch.uint8, device=self.tensors.x.device)

    # ---- Running ------------------------------------------------------------------------------
    def workspace(self) -> _core.Workspace:
        """The workspace, on the current stream."""
        x = self.tensors.x
        group = group_of(self.scalars.group, x.device.index if x.is_cuda else None)
        workspace = self.plan.workspace(group, x.shape[0])
        if x.is_cuda:
            workspace.set_stream(torch.cuda.current_stream(x.device).cuda_stream)
        return workspace

    def library_weights(self) -> _core.Weights:
        tensors = [w.detach() for w in self.tensors.weights]
        return _core.Weights(**fields_of(self.plan.operands, tensors, stack_views))

    def library_inputs(self) -> _core.Inputs:
        t = self.tensors
        return _core.Inputs(
            x=t.x.detach(),
            topk_weights=t.topk_weights.detach(),
            shared_weights=None if t.shared_weights is None else t.shared_weights.detach(),
        )

    def forward(self, keep: bool) -> tuple[torch.Tensor, ...]:
        """out [T, H], tokens_per_expert [E_l], and with keep the bytes of schedule and context."""
        t = self.tensors
        weights, inputs = self.library_weights(), self.library_inputs()
        workspace = self.workspace()
        if keep:
            blocks = self.schedule_block(), self.context_block()
            schedule = _core.Schedule(workspace, t.topk_ids, *_place(blocks[0]))
            context = _core.Context(*_place(blocks[1]))
        else:
            blocks = self.empty_block(), self.empty_block()
            schedule, context = _core.Schedule(workspace, t.topk_ids), None
        out = torch.empty(t.x.shape, dtype=t.x.dtype, device=t.x.device)
        _core.forward(workspace, schedule, weights, inputs, out, context)
        return out, self._tokens_per_expert(workspace, schedule), *blocks

    def _tokens_per_expert(
        self, workspace: _core.Workspace, schedule: _core.Schedule
    ) -> torch.Tensor:
        if not self.tensors.x.is_cuda:
            return torch.tensor(schedule.tokens_per_expert(), dtype=torch.int32)
        rows = schedule.tokens_per_expert_device(workspace)
        return torch.from_dlpack(rows).reshape(-1).clone()

    def backward(
        self,
        d_out: torch.Tensor,
        blocks: tuple[torch.Tensor, torch.Tensor],
        input_grads: _core.InputGrads,
        weight_grads: _core.WeightGrads,
    ) -> None:
        """From the blocks of a forward, or copies of them."""
        weights, inputs = self.library_weights(), self.library_inputs()
        workspace = self.workspace()
        tokens = self.tensors.x.shape[0]
        schedule = _core.Schedule.restored(workspace, tokens, *_place(blocks[0]))
        context = _core.Context.restored(workspace, schedule, *_place(blocks[1]))
        d_out = d_out if d_out.is_contiguous() else d_out.contiguous()
        saved = (schedule, weights, inputs, context)
        _core.backward(workspace, saved, d_out.detach(), input_grads, weight_grads)


def _place(block: torch.Tensor) -> tuple[int, int]:
    return block.data_ptr(), block.numel()
