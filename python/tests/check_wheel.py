"""Builds the wheel against this build's library and runs it where nothing else of openmok is.

check_wheel.py SOURCE BUILD WORK. Asks no network: the build tools and NumPy are this Python's own.
"""

import os
from pathlib import Path
import shutil
import subprocess
import sys

import numpy

from tag_wheel import tagged

PROGRAM = """
import numpy as np, openmok
x = np.ones((4, 16), np.float32)
ids = np.array([[0, 1]] * 4)
out, rows = openmok.moe(x, ids, np.ones((4, 2), np.float32),
                        np.ones((2, 16, 16), np.float32), np.ones((2, 16, 8), np.float32))
# gate = up = 16, silu(16) * 16 = 256 in BF16; 8 of them, from each of two experts.
assert (out == 4096).all(), out
assert rows.tolist() == [4, 4], rows
print(openmok.__file__, openmok.built_backends())
"""


def run(*command, **options):
    print("+", *command, flush=True)
    return subprocess.run(command, check=True, **options)


def main(source, build, work):
    shutil.rmtree(work, ignore_errors=True)
    prefix, wheels = work / "prefix", work / "wheels"
    run("cmake", "--install", str(build), "--prefix", str(prefix), stdout=subprocess.DEVNULL)
    package = next(prefix.glob("lib*/**/openmok-config.cmake")).parent
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--wheel-dir", str(wheels), f"--config-settings=cmake.define.openmok_DIR={package}"),
        *(f"--config-settings=build-dir={work / 'build'}", str(source)),
    )
    (wheel,) = wheels.glob("openmok-*.whl")
    wheel = tagged(wheel)
    assert "-manylinux_2_" in wheel.name, wheel
    print(wheel.name, wheel.stat().st_size, "bytes")

    run(sys.executable, "-m", "venv", "--without-pip", str(work / "venv"))
    python = work / "venv/bin/python"
    run(
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"),
        *("--no-index", str(wheel)),
    )
    environment = os.environ | {"PYTHONPATH": str(Path(numpy.__file__).parents[1])}
    done = run(
        *(str(python), "-c", PROGRAM), env=environment, cwd=work, capture_output=True, text=True
    )
    print(done.stdout)
    assert done.stdout.startswith(str(work / "venv")), "another openmok was imported"


main(*(Path(argument).resolve() for argument in sys.argv[1:4]))
