"""The reference's configuration (`openmok.compat`)."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Any

from .errors import MokShapeError
from .shape import Tuning

_MINIBATCH_UNIT = 256


@dataclass(frozen=True)
class MoKConfig:
    """minibatch_size (b) and macrobatch_size (B, the ring and the context) cut the work. The others
    are checked and have no effect: no multiprocessor is set aside for communication, schedules hold
    every routing, and ids travel in one piece."""

    fwd_num_comm_sms: int = 40
    bwd_num_comm_sms: int = 28
    minibatch_size: int = 4096
    macrobatch_size: int = 131072
    schedule_capacity_multiplier: float = 0.5
    all_gather_top_experts_chunk_bytes: int = 2048

    def __post_init__(self) -> None:
        for name in ("fwd_num_comm_sms", "bwd_num_comm_sms"):
            number = getattr(self, name)
            _require(number > 0 and number % 2 == 0, name, "an even number above 0", number)
        b, macro = self.minibatch_size, self.macrobatch_size
        unit = f"a multiple of {_MINIBATCH_UNIT} above 0"
        _require(b > 0 and b % _MINIBATCH_UNIT == 0, "minibatch_size", unit, b)
        _require(
            macro > 0 and macro % b == 0, "macrobatch_size", f"a multiple of {b} above 0", macro
        )
        capacity = self.schedule_capacity_multiplier
        finite = math.isfinite(capacity) and capacity > 0
        _require(finite, "schedule_capacity_multiplier", "a finite number above 0", capacity)
        chunk = self.all_gather_top_experts_chunk_bytes
        _require(
            chunk > 0 and chunk % 16 == 0,
            "all_gather_top_experts_chunk_bytes",
            "a multiple of 16 above 0",
            chunk,
        )

    def tuning(self, max_tokens: int) -> Tuning:
        return Tuning(
            minibatch_rows=self.minibatch_size,
            macrobatch_rows=self.macrobatch_size,
            context_rows=self.macrobatch_size,
            max_tokens=max_tokens,
        )


def _require(holds: bool, name: str, expected: str, found: Any) -> None:
    if not holds:
        raise MokShapeError(f"{name}: expected {expected}, found {found}")
