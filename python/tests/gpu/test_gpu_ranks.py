"""Two ranks in processes, a GPU each, against one rank: two_ranks.py under torchrun."""

import os
from pathlib import Path
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
SEEN = ["process group", "mesh", "no tokens", "beside all-reduces", "graph", "compat", "compiled"]
SEEN += ["DTensors", "module"]


def test_two_ranks_have_the_bits_of_one():
    if torch.cuda.device_count() < 2:
        pytest.skip(f"expected two GPUs, found {torch.cuda.device_count()}")
    path = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(HERE / "two_ranks.py")),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("right: ")]
    assert said == [f"right: {what}" for what in SEEN]
