"""scripts/record with a program in the place of mok: python3 test_record.py."""

import json
import pathlib
import stat
import subprocess
import tempfile
import unittest

RECORD = pathlib.Path(__file__).parents[1] / "scripts" / "record"
# Writes its arguments to the file behind --json, and fails where that is of T = 8192 in mxfp8.
MOK = """#!/usr/bin/env python3
import json, sys
name = sys.argv[sys.argv.index("--json") + 1]
if name.endswith("mxfp8.json"):
    sys.exit("mok: no such GPU")
json.dump(sys.argv[1:], open(name, "w"))
"""


class Record(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.mok = self.folder / "mok"
        self.mok.write_text(MOK)
        self.mok.chmod(self.mok.stat().st_mode | stat.S_IXUSR)
        self.out = self.folder / "out"
        self.out.mkdir()

    def record(self, *arguments):
        return subprocess.run([RECORD, *arguments], capture_output=True, text=True, check=False)

    def run_groups(self, *groups):
        return self.record("--mok", self.mok, "--out", self.out, *groups)

    def arguments_of(self, name):
        return json.loads((self.out / f"{name}.json").read_text())

    def test_a_file_for_every_run(self):
        self.assertEqual(self.run_groups("sonic", "ring").returncode, 0)
        names = sorted(f.name for f in self.out.iterdir())
        self.assertEqual(
            names,
            [
                "h200_context_8192.json",
                "h200_ring_8192.json",
                "h200_ring_all.json",
                "h200_sonic.json",
                "h200_zipf_ring.json",
            ],
        )
        context = self.arguments_of("h200_context_8192")
        self.assertEqual(context[context.index("--context-rows") + 1], "8192")
        self.assertEqual(context[:3], ["bench", "--backend", "cuda"])

    def test_one_that_fails_keeps_nobody_from_the_others(self):
        ended = self.run_groups("precision")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("h200_t8192_mxfp8: failed", ended.stdout)
        self.assertIn("no such GPU", ended.stdout)
        self.assertTrue((self.out / "h200_t8192_fp8_block.json").exists())
        self.assertFalse((self.out / "h200_t8192_mxfp8.json").exists())

    def test_what_is_there_stays(self):
        (self.out / "h200_sonic.json").write_text("before")
        self.assertIn("there already", self.run_groups("sonic").stdout)
        self.assertEqual((self.out / "h200_sonic.json").read_text(), "before")

    def test_a_dry_run_prints_the_commands_and_makes_nothing(self):
        ended = self.record("--dry-run", "--out", self.out, "one-gpu", "two-gpus")
        commands = ended.stdout.splitlines()
        names = [c.split("--json ")[1] for c in commands]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(sum("--ranks 2" in c for c in commands), 4)
        self.assertEqual(list(self.out.iterdir()), [])

    def test_bad_calls_are_refused_in_a_sentence(self):
        for arguments, sentence in (
            (["soonic"], "group: expected one of one-gpu, "),
            ([], "expected a group, found none"),
            (["--out"], "--out: expected a value"),
            (["--mok", "/no/mok", "sonic"], "--mok: expected a program, found /no/mok"),
            (["--mok", str(self.mok), "--out", "/no/folder", "sonic"], "--out: expected a folder"),
        ):
            ended = self.record(*arguments)
            self.assertEqual(ended.returncode, 2, arguments)
            self.assertIn(sentence, ended.stderr)
            self.assertEqual(len(ended.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
