"""What one pass takes of torch's allocator. Knows the allocator by its three functions alone."""

_BLOCK_BYTES = 512  # sizes are rounded up to it


class PassMemory:
    """Bytes above those that were allocated when this was made, before the pass.

    allocator: torch.cuda, or what has its functions of these names."""

    def __init__(self, allocator):
        self.allocator = allocator
        allocator.reset_peak_memory_stats()
        self.before = allocator.memory_allocated()
        self.saved_bytes = None

    def forward_has_ended(self, out):
        """What is kept for a backward now: all but the output itself, and but what was there
        before, x and the weights among it."""
        own = out.untyped_storage().nbytes()
        rounded = -(-own // _BLOCK_BYTES) * _BLOCK_BYTES
        self.saved_bytes = self.allocator.memory_allocated() - self.before - rounded

    def answer(self):
        """As peer.py's answers have it."""
        peak = self.allocator.max_memory_allocated() - self.before
        return {"pass_peak_bytes": peak, "saved_bytes": self.saved_bytes}


def slowest_and_largest(answers):
    """One answer of all ranks' to a run: of each number the largest; None where a rank has none."""

    def largest(key):
        values = [answer[key] for answer in answers]
        return None if None in values else max(values)

    return {key: largest(key) for key in ("ms", "pass_peak_bytes", "saved_bytes")}
