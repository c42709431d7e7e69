"""The extension: openmok/layer.h thinly, for tensors of any framework that DLPack exports.

`Tensor` stands for such a tensor; Python's types do not tell one. The shapes are in the docstrings of
the package's functions and in docs/python.md.
"""

import enum
from typing import Any, Sequence, overload

from .shape import LayerShape, Tuning

Tensor = Any

def has_cuda_backend() -> bool: ...
def why_no_cuda(device: int = 0) -> str: ...

class MeetingPoint:
    def __init__(self, host: str, port: int) -> None: ...
    @staticmethod
    def listen(host: str) -> MeetingPoint: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...

class Group:
    @staticmethod
    def alone(timeout: float | None = None) -> Group: ...
    @staticmethod
    def in_process(num_ranks: int, timeout: float | None = None) -> list[Group]: ...
    @staticmethod
    def cuda_virtual(
        num_ranks: int, device: int, timeout: float | None = None
    ) -> list[Group]: ...
    @staticmethod
    def connect(
        point: MeetingPoint,
        rank: int,
        size: int,
        local_rank: int = 0,
        job: str = "",
        timeout: float | None = None,
    ) -> Group: ...
    @staticmethod
    def cuda_connect(
        point: MeetingPoint,
        rank: int,
        size: int,
        local_rank: int,
        device: int,
        job: str = "",
        timeout: float | None = None,
    ) -> Group: ...
    @staticmethod
    def cuda_from_environment(timeout: float | None = None) -> Group: ...
    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_cuda(self) -> bool: ...
    @property
    def device_index(self) -> int: ...
    def abandon(self, why: str) -> None: ...

class GradMode(enum.Enum):
    Overwrite = 0
    Accumulate = 1
    Chain = 2

class Weights:
    def __init__(
        self,
        *,
        gate: Tensor = None,
        up: Tensor = None,
        down: Tensor = None,
        gate_bias: Tensor = None,
        up_bias: Tensor = None,
        down_bias: Tensor = None,
        shared_gate: Tensor = None,
        shared_up: Tensor = None,
        shared_down: Tensor = None,
        fp8: Fp8Weights | None = None,
    ) -> None: ...

class Fp8Weights:
    def __init__(self, workspace: Workspace) -> None: ...
    def invalidate(self) -> None: ...
    def set_filled(self) -> None: ...
    @property
    def is_filled(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    def data(self, workspace: Workspace) -> Tensor: ...

class Inputs:
    def __init__(
        self, *, x: Tensor, topk_weights: Tensor, shared_weights: Tensor = None
    ) -> None: ...

class InputGrads:
    def __init__(
        self, *, x: Tensor = None, topk_weights: Tensor = None, shared_weights: Tensor = None
    ) -> None: ...

class WeightGrads:
    def __init__(
        self,
        mode: GradMode = ...,
        shared_mode: GradMode = ...,
        *,
        gate: Tensor = None,
        up: Tensor = None,
        down: Tensor = None,
        gate_bias: Tensor = None,
        up_bias: Tensor = None,
        down_bias: Tensor = None,
        shared_gate: Tensor = None,
        shared_up: Tensor = None,
        shared_down: Tensor = None,
    ) -> None: ...

class Workspace:
    def __init__(
        self, group: Group, shape: LayerShape, tuning: Tuning, max_tokens: int
    ) -> None: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first_expert(self) -> int: ...
    @property
    def num_local_experts(self) -> int: ...
    def schedule_bytes(self, num_tokens: int) -> int: ...
    def context_bytes(self, num_tokens: int) -> int: ...
    def set_stream(self, cuda_stream: int) -> None: ...
    def synchronize(self) -> None: ...
    @property
    def _may_be_captured(self) -> bool: ...
    def _lose_arrivals_of(self, task: int) -> None: ...

class Schedule:
    @overload
    def __init__(self, workspace: Workspace, topk_ids: Tensor) -> None: ...
    @overload
    def __init__(
        self, workspace: Workspace, topk_ids: Tensor, data: int, bytes: int
    ) -> None: ...
    @staticmethod
    def restored(
        workspace: Workspace, num_tokens: int, data: int, bytes: int
    ) -> Schedule: ...
    def tokens_per_expert(self) -> list[int]: ...
    def tokens_per_expert_device(self, workspace: Workspace) -> Tensor: ...

class Context:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, data: int, bytes: int) -> None: ...
    @staticmethod
    def restored(
        workspace: Workspace, schedule: Schedule, data: int, bytes: int
    ) -> Context: ...
    @property
    def bytes(self) -> int: ...

Saved = tuple[Schedule, Weights, Inputs, Context]

def forward(
    workspace: Workspace,
    schedule: Schedule,
    weights: Weights,
    inputs: Inputs,
    out: Tensor,
    context: Context | None = None,
) -> None: ...
def recompute(
    workspace: Workspace,
    schedule: Schedule,
    weights: Weights,
    inputs: Inputs,
    context: Context,
) -> None: ...
def backward(
    workspace: Workspace,
    saved: Saved,
    d_out: Tensor,
    input_grads: InputGrads,
    weight_grads: WeightGrads,
) -> None: ...
def backward_input(
    workspace: Workspace, saved: Saved, d_out: Tensor, input_grads: InputGrads
) -> None: ...
def wgrad(
    workspace: Workspace, saved: Saved, d_out: Tensor, weight_grads: WeightGrads
) -> None: ...
def quantize_weights(workspace: Workspace, weights: Weights, to: Fp8Weights) -> None: ...
def shared_wgrad(
    workspace: Workspace, saved: Saved, d_out: Tensor, weight_grads: WeightGrads
) -> None: ...

# ---- The calls of openmok.moe: of torch tensors, each in one entry --------------------------------
class Operands:
    def __init__(self, operands: Sequence[tuple[str, Sequence[str], int]]) -> None: ...

class Restored: ...

class Likeness:
    def __init__(
        self,
        x: Tensor,
        topk_ids: Tensor,
        weights: tuple[Any, ...],
        plain_types: tuple[type, ...],
    ) -> None: ...
    def requires_gradients(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        shared_weights: Tensor | None,
        weights: tuple[Any, ...],
    ) -> bool | None: ...

def equal_step(tensors: list[Tensor]) -> int: ...
def moe_forward(
    workspace: Workspace,
    operands: Operands,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    topk_ids: Tensor,
    weights: list[Any],
    out: Tensor,
    tokens_per_expert: Tensor,
    kept: Tensor,
    keeps_context: bool,
    fp8: Fp8Weights | None = None,
) -> None: ...
def moe_backward(
    workspace: Workspace,
    operands: Operands,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    weights: list[Any],
    d_out: Tensor,
    kept: Tensor,
    d_inputs: tuple[Tensor | None, Tensor | None, Tensor | None],
    d_weights: list[Any],
    modes: tuple[GradMode, GradMode],
    fp8: Fp8Weights | None = None,
) -> None: ...
def moe_backward_input(
    workspace: Workspace,
    operands: Operands,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    weights: list[Any],
    d_out: Tensor,
    kept: Tensor,
    d_inputs: tuple[Tensor | None, Tensor | None, Tensor | None],
    fp8: Fp8Weights | None = None,
) -> Restored: ...
def moe_wgrad(
    workspace: Workspace,
    operands: Operands,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    weights: list[Any],
    d_out: Tensor,
    restored: Restored,
    d_weights: list[Any],
    modes: tuple[GradMode, GradMode],
    is_shared_alone: bool,
    fp8: Fp8Weights | None = None,
) -> None: ...
def moe_quantize(
    workspace: Workspace, operands: Operands, x: Tensor, weights: list[Any], fp8: Fp8Weights
) -> None: ...
