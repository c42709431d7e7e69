"""A deterministic mixture-of-experts layer for training: docs/python.md of the project.

`moe` is the layer as a function of torch tensors or NumPy arrays, `MoE` the torch module. The
calls below them (`Workspace`, `Schedule`, `Context`, `forward`, `recompute`, `backward`,
`backward_input`, `wgrad`) are the C++ API's, for tensors of any framework that DLPack exports.
Importing openmok imports no torch and creates no CUDA context.
"""

from __future__ import annotations

import sys
from typing import Any

from ._core import (
    Context,
    Fp8Weights,
    GradMode,
    Group,
    InputGrads,
    Inputs,
    MeetingPoint,
    Schedule,
    WeightGrads,
    Weights,
    Workspace,
    backward,
    backward_input,
    forward,
    quantize_weights,
    recompute,
    shared_wgrad,
    wgrad,
)
from . import _core
from ._functional import moe
from ._groups import group_name
from ._join_dumps import join_dumps
from ._workspaces import clear_workspaces, synchronize, workspace_bytes
from .errors import MokError, MokShapeError, MokTimeout
from .shape import Activation, LayerShape, Tuning

__version__ = "0.1.0"


def built_backends() -> tuple[str, ...]:
    """The backends that this build holds: ("cpu",) or ("cpu", "cuda")."""
    return ("cpu", "cuda") if _core.has_cuda_backend() else ("cpu",)


def why_no_cuda(device: int = 0) -> str:
    """Why CUDA tensors of a device cannot be used, in one sentence; empty where they can."""
    return _core.why_no_cuda(device)


def invalidate_quantized_weights() -> None:
    """Weights were written in a way that torch does not count, outside an optimizer's step (through
    `.data`, or by another library): calls of `moe` in FP8 quantise theirs again."""
    fp8 = sys.modules.get(f"{__name__}._fp8")
    if fp8 is not None:
        fp8.invalidate()


def __getattr__(name: str) -> Any:
    # torch is imported with the first use of the module that needs it.
    if name == "MoE":
        from .nn import MoE

        return MoE
    raise AttributeError(f"module 'openmok' has no attribute {name!r}")


__all__ = [
    "Activation",
    "Context",
    "Fp8Weights",
    "GradMode",
    "Group",
    "InputGrads",
    "Inputs",
    "LayerShape",
    "MeetingPoint",
    "MoE",
    "MokError",
    "MokShapeError",
    "MokTimeout",
    "Schedule",
    "Tuning",
    "WeightGrads",
    "Weights",
    "Workspace",
    "backward",
    "backward_input",
    "built_backends",
    "clear_workspaces",
    "forward",
    "group_name",
    "invalidate_quantized_weights",
    "join_dumps",
    "moe",
    "quantize_weights",
    "recompute",
    "shared_wgrad",
    "synchronize",
    "wgrad",
    "why_no_cuda",
    "workspace_bytes",
]
