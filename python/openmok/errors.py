"""What openmok raises. Each message is one sentence: what, where, expected, found."""


class MokError(RuntimeError):
    """Anything but the two below: a device that cannot be used, a build without a backend."""


class MokShapeError(ValueError):
    """A shape, dtype, stride, option or id that a call cannot take. Nothing has been written."""


class MokTimeout(RuntimeError):
    """A rank that did not come within the group's bound. The group is broken from then on.

    Attributes:
        rank: where the wait expired.
        peer: who was waited for; -1: this rank's own work.
    """

    def __init__(self, message: str, rank: int = -1, peer: int = -1):
        super().__init__(message)
        self.rank = rank
        self.peer = peer

    def __reduce__(self):
        return type(self), (self.args[0], self.rank, self.peer)
