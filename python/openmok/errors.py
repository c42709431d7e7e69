"""What openmok raises. Each message is one sentence: what, where, expected, found.

Under MOK_DUMP the sentence of an error of `moe` ends with the name of the file that holds the call's
tensors, and `dump` is its path; otherwise `dump` is None.
"""

from __future__ import annotations

from pathlib import Path
import re

# Of the library's sentence about a wait that expired.
_TASK = re.compile(r"worker \d+: (\w+ of \w+ -?\d+, part -?\d+) waited ")


class MokError(RuntimeError):
    """Anything but the two below: a device that cannot be used, a build without a backend."""

    dump: Path | None = None


class MokShapeError(ValueError):
    """A shape, dtype, stride, option or id that a call cannot take. Nothing has been written."""

    dump: Path | None = None


class MokTimeout(RuntimeError):
    """A rank that did not come within the group's bound. The group is broken from then on.

    Attributes:
        rank: where the wait expired.
        peer: who was waited for; -1: this rank's own work.
        task: what could not start, such as "GateUp of tile 5, part 3"; "": the ranks did not meet.
    """

    dump: Path | None = None

    def __init__(self, message: str, rank: int = -1, peer: int = -1):
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        found = _TASK.search(message)
        self.task = found[1] if found else ""

    def __reduce__(self) -> tuple[type[MokTimeout], tuple[str, int, int]]:
        return type(self), (self.args[0], self.rank, self.peer)
