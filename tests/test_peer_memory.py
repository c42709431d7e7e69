"""bench/peers/moe_peer/memory.py with an allocator of known sizes: python3 test_peer_memory.py."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "bench" / "peers"))
from moe_peer.memory import PassMemory, slowest_and_largest  # noqa: E402


class Allocator:
    """torch.cuda's three functions; blocks are multiples of 512 bytes."""

    def __init__(self):
        self.now = self.peak = 0

    def take(self, num_bytes):
        self.now += -(-num_bytes // 512) * 512
        self.peak = max(self.peak, self.now)

    def give(self, num_bytes):
        self.now -= -(-num_bytes // 512) * 512

    def memory_allocated(self):
        return self.now

    def max_memory_allocated(self):
        return self.peak

    def reset_peak_memory_stats(self):
        self.peak = self.now


class Output:
    def __init__(self, num_bytes):
        self.num_bytes = num_bytes

    def untyped_storage(self):
        return self

    def nbytes(self):
        return self.num_bytes


class PassMemoryTest(unittest.TestCase):
    def test_a_step(self):
        allocator = Allocator()
        allocator.take(10_000_000)  # weights, x; an earlier pass had its own peak
        allocator.give(2_000_000)
        memory = PassMemory(allocator)
        allocator.take(4096)  # what the forward keeps
        allocator.take(1024)  # needed for a while
        allocator.take(1000)  # its output: 1024
        allocator.give(1024)
        memory.forward_has_ended(Output(1000))
        self.assertEqual(memory.answer(), {"pass_peak_bytes": 6144, "saved_bytes": 4096})
        allocator.take(8192)  # gradients
        self.assertEqual(memory.answer(), {"pass_peak_bytes": 13312, "saved_bytes": 4096})
        allocator.give(8192)
        self.assertEqual(memory.answer()["pass_peak_bytes"], 13312)

    def test_products_save_nothing_that_is_known(self):
        allocator = Allocator()
        memory = PassMemory(allocator)
        allocator.take(512)
        self.assertEqual(memory.answer(), {"pass_peak_bytes": 512, "saved_bytes": None})

    def test_of_several_ranks(self):
        one = {"ms": 1.5, "pass_peak_bytes": 7, "saved_bytes": 3}
        other = {"ms": 1.0, "pass_peak_bytes": 9, "saved_bytes": None}
        self.assertEqual(slowest_and_largest([one, one]), one)
        self.assertEqual(slowest_and_largest([one, other]),
                         {"ms": 1.5, "pass_peak_bytes": 9, "saved_bytes": None})


if __name__ == "__main__":
    unittest.main()
