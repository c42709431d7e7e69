"""Workspaces, schedules and contexts of `openmok.compat`."""

from __future__ import annotations

from dataclasses import dataclass
import threading
from typing import Any

import torch

from . import _core
from ._compat_weights import Weights
from ._groups import group_name, group_of, place_of
from ._mok_config import MoKConfig
from ._sizes import Extent
from ._workspaces import workspace_for
from .shape import Activation, LayerShape


@dataclass(frozen=True)
class MoKWorkspace:
    """Which ranks run a layer, and its sizes; the memory itself comes with the first forward, when
    the experts' width is known, and is shared by all layers of that shape."""

    group: str
    device: torch.device
    num_local_tokens: int
    hidden_size: int
    topk: int

    def layer(self, weights: Weights, limit: float) -> LayerShape:
        return LayerShape(
            self.hidden_size,
            weights.width,
            weights.num_local_experts * place_of(self.group)[1],
            self.topk,
            weights.shared_width,
            Activation(limit=limit),
            weights.precision,
        )

    def memory(self, config: MoKConfig, shape: LayerShape) -> _core.Workspace:
        """The library's workspace, on the current stream."""
        is_cuda = self.device.type == "cuda"
        group = group_of(self.group, self.device.index if is_cuda else None)
        tuning = config.tuning(self.num_local_tokens)
        workspace = workspace_for(group, shape, tuning, self.num_local_tokens)
        if is_cuda:
            workspace.set_stream(torch.cuda.current_stream(self.device).cuda_stream)
        return workspace

    def extent(self, num_local_experts: int) -> Extent:
        return Extent(place_of(self.group)[1], num_local_experts, self.num_local_tokens)


@dataclass(frozen=True)
class MoKSchedule:
    """Where the routes of one step go: for its forward, recompute and backward.

    num_tokens [1] int32 counts the rows that came to this rank, tokens_per_expert [E_l] int32 those
    of each expert; both stay on the device.
    """

    num_tokens: torch.Tensor
    tokens_per_expert: torch.Tensor
    block: torch.Tensor  # this library's own form

    def on(self, memory: _core.Workspace, num_tokens: int) -> _core.Schedule:
        place = self.block.data_ptr(), self.block.numel()
        return _core.Schedule.restored(memory, num_tokens, *place)


@dataclass(frozen=True)
class MoKForwardContext:
    """Gate and up of the first macrobatch. A backward leaves it as it is."""

    block: torch.Tensor


# ---- Workspaces -------------------------------------------------------------------------------
_lock = threading.Lock()
_cached: dict[tuple[Any, ...], MoKWorkspace] = {}


def create_workspace(
    config: MoKConfig,
    group: Any,
    *,
    device: torch.device | str | int,
    num_local_tokens: int,
    hidden_size: int,
    topk: int,
) -> MoKWorkspace:
    """Collective where the group is met for the first time."""
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    made = MoKWorkspace(group_name(group), place, num_local_tokens, hidden_size, topk)
    group_of(made.group, place.index if place.type == "cuda" else None)
    return made


def get_workspace(
    config: MoKConfig,
    group: Any,
    *,
    device: torch.device | str | int,
    num_local_tokens: int,
    hidden_size: int,
    topk: int,
) -> MoKWorkspace:
    """create_workspace, once for equal arguments."""
    key = group_name(group), str(device), num_local_tokens, hidden_size, topk
    with _lock:
        found = _cached.get(key)
    if found is None:
        found = create_workspace(
            config,
            group,
            device=device,
            num_local_tokens=num_local_tokens,
            hidden_size=hidden_size,
            topk=topk,
        )
        with _lock:
            _cached[key] = found
    return found


def clear_workspace_cache() -> None:
    """Collective. Forgets the workspaces; `openmok.clear_workspaces` returns their memory."""
    with _lock:
        _cached.clear()
