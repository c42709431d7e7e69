"""The call surface of Cursor's Mixture-of-Kittens (the package `mok`), on this library.

For adapters that are written against its `functional` module: the same names, arguments and
results. `as_mok()` makes `import mok`, `mok.functional` and `mok.ops` find this module; nothing
else does. docs/python.md says what differs.

Symbols: T tokens of a rank, k choices, H hidden, I an expert's width, E_l experts of a rank.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Sequence

import torch

from . import _core
from ._compat_forms import ExpertTable, SplitRoutedWeight, are_one, halves_of, without_splits
from ._compat_forms import table as make_routed_d_weight_storage_table
from ._compat_forms import table as make_routed_scale_storage_table
from ._compat_forms import table as make_routed_weight_storage_table_bf16
from ._compat_forms import table as make_routed_weight_storage_table_mxfp8
from ._compat_gate import OutputGate
from ._compat_weights import Pass, RoutedWeight, Weights
from ._compat_workspaces import (
    MoKForwardContext,
    MoKSchedule,
    MoKWorkspace,
    clear_workspace_cache,
    create_workspace,
    get_workspace,
)
from ._groups import place_of
from ._mok_config import MoKConfig
from ._mxfp8 import mxfp8_quantize
from ._sizes import context_bytes, schedule_bytes
from .errors import MokError, MokShapeError
from .shape import LayerShape

_SCHEDULE_WIDTH = 8  # of a layer whose schedules serve those of every width


# ---- The calls --------------------------------------------------------------------------------
def build_schedule(
    workspace: MoKWorkspace, config: MoKConfig, top_experts: torch.Tensor, *, num_local_experts: int
) -> MoKSchedule:
    """top_experts [T, k] int64 or int32; -1: no expert. Collective, without waiting."""
    if top_experts.shape[0] != workspace.num_local_tokens:
        raise MokShapeError(
            f"top_experts: expected {workspace.num_local_tokens} tokens, found "
            f"{top_experts.shape[0]}"
        )
    # A route table does not depend on widths, which are not known here.
    shape = LayerShape(
        _SCHEDULE_WIDTH,
        _SCHEDULE_WIDTH,
        num_local_experts * place_of(workspace.group)[1],
        workspace.topk,
    )
    memory = workspace.memory(config, shape)
    size = schedule_bytes(
        workspace.extent(num_local_experts), shape, config.tuning(workspace.num_local_tokens)
    )
    block = torch.empty((size,), dtype=torch.uint8, device=workspace.device)
    schedule = _core.Schedule(memory, top_experts.contiguous(), block.data_ptr(), size)
    if workspace.device.type == "cuda":
        rows = torch.from_dlpack(schedule.tokens_per_expert_device(memory)).reshape(-1).clone()
    else:
        rows = torch.tensor(schedule.tokens_per_expert(), dtype=torch.int32)
    return MoKSchedule(rows.sum(dtype=torch.int32).reshape(1), rows, block)


def forward(
    config: MoKConfig,
    workspace: MoKWorkspace,
    schedule: MoKSchedule,
    x: torch.Tensor,
    router_weights: torch.Tensor,
    w_shared_gate: torch.Tensor | None,
    w_shared_up: torch.Tensor | None,
    w_shared_down: torch.Tensor | None,
    w_routed_gate: RoutedWeight,
    w_routed_up: RoutedWeight,
    w_routed_down: RoutedWeight,
    swiglu_limit: float | None = None,
    shared_output_gate_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, MoKForwardContext]:
    """x [T, H], router_weights [T, k] F32, shared weights [S, H], [S, H], [H, S] or None, routed
    [E_l, I, H], [E_l, I, H], [E_l, H, I]: tensors, or in MXFP8 (elements, scales) of
    `mxfp8_quantize`, or SplitRoutedWeights. Gate and up may be the same [E_l, 2I, H], handed in
    twice: gate's rows, then up's. shared_output_gate_weight [1, H]: the shared expert's output is
    weighed by sigmoid(x w^T). Returns output [T, H] and the context."""
    routed = w_routed_gate, w_routed_up, w_routed_down
    weights = Weights(Pass.FORWARD, routed, (w_shared_gate, w_shared_up, w_shared_down))
    call = _Call(config, workspace, schedule, weights, swiglu_limit)
    gate = _gate_of(shared_output_gate_weight, x, w_shared_gate)
    context = call.context_block()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _core.forward(
        call.memory,
        call.schedule,
        weights.of_library(call.memory),
        _inputs(x, router_weights, gate),
        out,
        _core.Context(context.data_ptr(), context.numel()),
    )
    return out, MoKForwardContext(context)


def recompute_forward_context(
    config: MoKConfig,
    workspace: MoKWorkspace,
    schedule: MoKSchedule,
    x: torch.Tensor,
    w_shared_gate: torch.Tensor | None,
    w_shared_up: torch.Tensor | None,
    w_routed_gate: RoutedWeight,
    w_routed_up: RoutedWeight,
    swiglu_limit: float | None = None,
) -> MoKForwardContext:
    """The forward's context again, to the same bits."""
    # No down weight and no router weight takes part: anything of the right shape stands for them.
    shared_down = None if w_shared_gate is None else _any_of_shape_t(w_shared_gate)
    gate, up = without_splits((w_routed_gate, w_routed_up), False)
    if isinstance(gate, torch.Tensor) and are_one(gate, up):
        gate, up = halves_of("gate", gate, 1)
    down = _any_of_shape_t(gate) if isinstance(gate, torch.Tensor) else None
    routed = gate, up, down
    weights = Weights(Pass.RECOMPUTE, routed, (w_shared_gate, w_shared_up, shared_down))
    call = _Call(config, workspace, schedule, weights, swiglu_limit)
    context = call.context_block()
    no_weights = torch.zeros((x.shape[0], workspace.topk), device=x.device)
    _core.recompute(
        call.memory,
        call.schedule,
        weights.of_library(call.memory),
        _inputs(x, no_weights),
        _core.Context(context.data_ptr(), context.numel()),
    )
    return MoKForwardContext(context)


def backward(
    config: MoKConfig,
    workspace: MoKWorkspace,
    schedule: MoKSchedule,
    ctx: MoKForwardContext,
    grad_output: torch.Tensor,
    x: torch.Tensor,
    router_weights: torch.Tensor,
    w_shared_gate: torch.Tensor | None,
    w_shared_up: torch.Tensor | None,
    w_shared_down: torch.Tensor | None,
    w_routed_gate: RoutedWeight,
    w_routed_up: RoutedWeight,
    w_routed_down: RoutedWeight,
    swiglu_limit: float | None = None,
    main_grads: tuple[torch.Tensor | None, ...] | None = None,
    main_grad_storage_tables: Sequence[ExpertTable] | None = None,
    shared_output_gate_weight: torch.Tensor | None = None,
    shared_output_gate_main_grad: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """d_x, d_router_weights F32, then fresh gradients of the routed gate, up, down and the shared
    gate, up, down (None without a shared expert), each in the dtype of its weight. In MXFP8, whose
    gradients are BF16: gate and up (elements, scales, transposed elements, their scales), down the
    transposed pair.

    main_grads: buffers, BF16 or F32, of shared gate, routed gate, shared up, routed up, shared
    down, routed down, to which the gradients are added in place and which are returned in their places.
    main_grad_storage_tables: of the routed gate, up and down, where each expert's buffer is apart:
    tables of `make_routed_d_weight_storage_table`; main_grads then has expert 0's for them.

    With the gate's weight there is a ninth gradient, its own: F32 [1, H], or its buffer.
    """
    routed = w_routed_gate, w_routed_up, w_routed_down
    weights = Weights(Pass.BACKWARD, routed, (w_shared_gate, w_shared_up, w_shared_down))
    call = _Call(config, workspace, schedule, weights, swiglu_limit)
    gate = _gate_of(shared_output_gate_weight, x, w_shared_gate)
    if gate is None and shared_output_gate_main_grad is not None:
        raise MokShapeError(
            "shared_output_gate_main_grad: expected shared_output_gate_weight too, found none"
        )
    d_gate_values = None if gate is None else torch.empty_like(gate.values)
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    d_router_weights = torch.empty(router_weights.shape, device=x.device)
    mode = _core.GradMode.Overwrite if main_grads is None else _core.GradMode.Accumulate
    if main_grads is None:
        if main_grad_storage_tables is not None:
            raise MokShapeError("main_grad_storage_tables: expected main_grads too, found none")
        targets = weights.fresh_gradients()
    else:
        targets = weights.into(main_grads, main_grad_storage_tables)
    context = _core.Context.restored(
        call.memory, call.schedule, ctx.block.data_ptr(), ctx.block.numel()
    )
    _core.backward(
        call.memory,
        (call.schedule, weights.of_library(call.memory), _inputs(x, router_weights, gate), context),
        grad_output.detach().contiguous(),
        _core.InputGrads(x=d_x, topk_weights=d_router_weights, shared_weights=d_gate_values),
        _core.WeightGrads(mode=mode, shared_mode=mode, **targets.tensors),
    )
    found = d_x, d_router_weights, *targets.finish()
    if gate is None or d_gate_values is None:
        return found
    return *found, gate.backward(d_gate_values, d_x, shared_output_gate_main_grad)


class _Call:
    """The library's workspace and schedule of one call."""

    def __init__(
        self,
        config: MoKConfig,
        workspace: MoKWorkspace,
        schedule: MoKSchedule,
        weights: Weights,
        swiglu_limit: float | None,
    ):
        limit = math.inf if swiglu_limit is None else float(swiglu_limit)
        self.config, self.workspace = config, workspace
        self.local_experts = weights.num_local_experts
        self.shape = workspace.layer(weights, limit)
        self.memory = workspace.memory(config, self.shape)
        self.schedule = schedule.on(self.memory, workspace.num_local_tokens)

    def context_block(self) -> torch.Tensor:
        tuning = self.config.tuning(self.workspace.num_local_tokens)
        size = context_bytes(self.workspace.extent(self.local_experts), self.shape, tuning)
        return torch.empty((size,), dtype=torch.uint8, device=self.workspace.device)


def _inputs(
    x: torch.Tensor, router_weights: torch.Tensor, gate: OutputGate | None = None
) -> _core.Inputs:
    return _core.Inputs(
        x=x.detach(),
        topk_weights=router_weights.detach().contiguous(),
        shared_weights=None if gate is None else gate.values,
    )


def _gate_of(
    weight: torch.Tensor | None, x: torch.Tensor, w_shared_gate: torch.Tensor | None
) -> OutputGate | None:
    return None if weight is None else OutputGate(weight, x, w_shared_gate is not None)


def _any_of_shape_t(tensor: Any) -> torch.Tensor:
    """A tensor with the last two dimensions of this one exchanged, whose values nobody reads."""
    *batch, rows, cols = tensor.shape
    if tensor.is_contiguous():
        return tensor.detach().view(*batch, cols, rows)
    return tensor.detach().new_empty((1,) * len(batch) + (cols, rows)).expand(*batch, cols, rows)


# ---- The alias --------------------------------------------------------------------------------
def as_mok() -> None:
    """Makes `import mok`, `mok.functional` and `mok.ops` (of which mxfp8_quantize and the tables of
    experts that lie apart are there) find this module from now on. MokError where another package of
    that name has been imported already."""
    this = sys.modules[__name__]
    names = "mok", "mok.functional", "mok.ops"
    for name in names:
        if sys.modules.get(name, this) is not this:
            raise MokError(f"{name}: expected it not to be imported yet, found another package's")
    for name in names:
        sys.modules[name] = this
    setattr(this, "functional", this)
    setattr(this, "ops", this)


__all__ = [
    "MoKConfig",
    "MoKForwardContext",
    "MoKSchedule",
    "MoKWorkspace",
    "SplitRoutedWeight",
    "as_mok",
    "backward",
    "build_schedule",
    "clear_workspace_cache",
    "create_workspace",
    "forward",
    "get_workspace",
    "make_routed_d_weight_storage_table",
    "make_routed_scale_storage_table",
    "make_routed_weight_storage_table_bf16",
    "make_routed_weight_storage_table_mxfp8",
    "mxfp8_quantize",
    "recompute_forward_context",
]
