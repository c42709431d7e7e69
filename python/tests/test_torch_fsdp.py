"""The module under FSDP2, and its checkpoints."""

from pathlib import Path
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_two_ranks_of_fsdp_train_and_save_the_plain_module(tmp_path):
    program = Path(__file__).with_name("fsdp_ranks.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(program), str(tmp_path / "checkpoint")),
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n"
