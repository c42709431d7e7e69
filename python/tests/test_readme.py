"""README's Python program runs as it stands there and prints what README says."""

from pathlib import Path
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

README = Path(__file__).resolve().parents[2] / "README.md"


def numbers(text):
    return [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", text)]


def test_the_program_of_readme():
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), re.S)
    ((program, printed),) = [pair for pair in blocks if "import openmok" in pair[0]]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    steps, written = (
        [line for line in text.splitlines() if line.startswith("step")]
        for text in (done.stdout, printed)
    )
    assert len(steps) == len(written) == 3
    for step, line in zip(steps, written):
        # The dense operations around the layer are torch's: digits may differ between processors.
        assert numbers(step) == pytest.approx(numbers(line), rel=0.05)
    rows = next(line for line in done.stdout.splitlines() if line.startswith("tokens per"))
    assert sum(numbers(rows)) == 256 * 2
