"""Renames a wheel for the oldest manylinux whose libraries it needs: tag_wheel.py WHEEL.

Fails where that is newer than manylinux_2_34, or where the wheel is called abi3 and its extension is
built for one version of Python.
"""

from pathlib import Path
import re
import subprocess
import sys
import zipfile

NEWEST = (2, 34)


def tagged(wheel: Path) -> Path:
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.search(r'"(manylinux_(\d+)_(\d+)_\w+)"', said)
    if not found or (int(found[2]), int(found[3])) > NEWEST:
        sys.exit(f"{wheel.name}: expected manylinux_2_34 or older, found:\n{said}")
    (extension,) = (n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so"))
    if ("-abi3-" in wheel.name) != extension.endswith(".abi3.so"):
        sys.exit(f"{wheel.name}: expected an extension of its ABI, found {extension}")
    renamed = subprocess.run(
        [
            *(sys.executable, "-m", "wheel", "tags", "--remove"),
            *("--platform-tag", found[1], str(wheel)),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return wheel.with_name(renamed.splitlines()[-1])


if __name__ == "__main__":
    print(tagged(Path(sys.argv[1]).resolve()))
