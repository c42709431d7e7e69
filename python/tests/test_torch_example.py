"""examples/train_moe_lm.py: both backends train the same model."""

from pathlib import Path
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--steps 12 --report 4 --hidden 64 --heads 4 --intermediate 48 --experts 8 --top-k 2"
SMALL += " --layers 2 --batch 4 --length 64 --warm-up 2 --lr 3e-3 --device cpu"


def losses(backend, *options):
    program = ROOT / "examples/train_moe_lm.py"
    done = subprocess.run(
        [sys.executable, str(program), "--backend", backend, *SMALL.split(), *options],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    lines = re.findall(
        r"^step (\d+)  loss ([\d.]+)  \d+ tokens/s  layers [\d.]+% of [\d.]+ ms$", done.stdout, re.M
    )
    assert [int(step) for step, _ in lines] == [4, 8, 12]
    return [float(loss) for _, loss in lines]


def test_both_backends_learn_alike():
    text = ("--text", str(ROOT / "docs/design.md"))
    mok, plain = losses("mok", *text), losses("torch", *text)
    assert all(abs(a - b) < 0.05 for a, b in zip(mok, plain)), (mok, plain)
    assert mok[-1] < mok[0] - 0.5


def test_a_text_that_is_too_short(tmp_path):
    (tmp_path / "text").write_bytes(b"short")
    program = ROOT / "examples/train_moe_lm.py"
    done = subprocess.run(
        [sys.executable, str(program), "--text", str(tmp_path / "text"), "--device", "cpu"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "--text: expected more than 513 bytes, found 5\n"
