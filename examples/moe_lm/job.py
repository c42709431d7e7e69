"""The processes of a training run."""

from __future__ import annotations

from dataclasses import dataclass
import os

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Job:
    """Where this process stands: rank of size, on a device."""

    rank: int
    size: int
    device: torch.device

    def slice_of(self, total: int) -> tuple[int, int]:
        """This rank's share of `total` things: the first ranks have one more."""
        base, more = divmod(total, self.size)
        first = self.rank * base + min(self.rank, more)
        return first, first + base + (self.rank < more)


def start_job(device: str) -> Job:
    if "WORLD_SIZE" not in os.environ:
        return Job(0, 1, torch.device(device))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return Job(dist.get_rank(), dist.get_world_size(), torch.device(device))
