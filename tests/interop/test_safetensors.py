"""The project's safetensors files against the PyPI package `safetensors`, in both directions.

Usage: python test_safetensors.py SAFETENSORS_TOOL
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import safetensors
import safetensors.numpy

TOOL = sys.argv[1]
# Name in the file, name that the package's writer takes, bytes of an element.
DTYPES = [
    ("BOOL", "bool", 1), ("U8", "uint8", 1), ("I8", "int8", 1), ("F8_E4M3", "float8_e4m3fn", 1),
    ("F8_E5M2", "float8_e5m2", 1), ("I16", "int16", 2), ("U16", "uint16", 2),
    ("F16", "float16", 2), ("BF16", "bfloat16", 2), ("I32", "int32", 4), ("U32", "uint32", 4),
    ("F32", "float32", 4), ("I64", "int64", 8), ("U64", "uint64", 8), ("F64", "float64", 8),
]
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 4), (1, 2, 3, 4)]
METADATA = {"step": "12", "text \u00e9": 'quotes " and \\ and {}'}


def make_tensors(seed):
    """{name: (dtype name, package's dtype name, shape, bytes)}, all dtypes and shapes."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for index, (dtype, package_dtype, size) in enumerate(DTYPES):
        for shape in SHAPES:
            count = int(np.prod(shape)) * size
            data = rng.integers(0, 2 if dtype == "BOOL" else 256, count, dtype=np.uint8).tobytes()
            tensors[f"w\u00e9.{index}.{len(tensors)}"] = (dtype, package_dtype, shape, data)
    return tensors


def to_lines(tensors, metadata):
    lines = [f"metadata\t{key}\t{value}" for key, value in sorted(metadata.items())]
    for name, (dtype, _, shape, data) in sorted(tensors.items()):
        lines.append(f"tensor\t{name}\t{dtype}\t{','.join(map(str, shape))}\t{data.hex()}")
    return lines


def package_bytes(tensors, metadata):
    arrays = {name: np.frombuffer(row[3], np.uint8) for name, row in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(dtype=row[1], shape=list(row[2]),
                                     data_ptr=arrays[name].ctypes.data, data_len=len(row[3]))
        for name, row in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata=metadata))


def run_tool(command, path, lines=()):
    return subprocess.run([TOOL, command, str(path)], input="\n".join(lines).encode(),
                          capture_output=True, timeout=60, check=False)


class Interop(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "file.safetensors"

    def test_the_package_reads_ours(self):
        tensors = make_tensors(1)
        result = run_tool("write", self.path, to_lines(tensors, METADATA))
        self.assertEqual(result.returncode, 0, result.stderr)
        read = dict(safetensors.deserialize(self.path.read_bytes()))
        self.assertEqual(set(read), set(tensors))
        for name, (dtype, _, shape, data) in tensors.items():
            self.assertEqual(read[name]["dtype"], dtype)
            self.assertEqual(tuple(read[name]["shape"]), shape)
            self.assertEqual(bytes(read[name]["data"]), data, name)
        with safetensors.safe_open(self.path, framework="np") as file:
            self.assertEqual(file.metadata(), METADATA)

    def test_numpy_values_read_from_ours(self):
        values = np.array([[0.5, -2.0, np.inf], [1e-40, 3.0, -0.0]], np.float32)
        line = f"tensor\tw\tF32\t2,3\t{values.tobytes().hex()}"
        self.assertEqual(run_tool("write", self.path, [line]).returncode, 0)
        read = safetensors.numpy.load_file(self.path)["w"]
        np.testing.assert_array_equal(read, values)
        self.assertEqual(read.dtype, np.float32)

    def test_ours_reads_the_package(self):
        tensors = make_tensors(2)
        self.path.write_bytes(package_bytes(tensors, METADATA))
        result = run_tool("dump", self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.decode().splitlines(), to_lines(tensors, METADATA))

    def test_every_tensor_of_ours_is_aligned_to_its_element(self):
        tensors = make_tensors(3)
        sizes = {dtype: size for dtype, _, size in DTYPES}
        self.assertEqual(run_tool("write", self.path, to_lines(tensors, {})).returncode, 0)
        content = self.path.read_bytes()
        header_bytes = int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:8 + header_bytes]).items():
            at = 8 + header_bytes + entry["data_offsets"][0]
            self.assertEqual(at % sizes[entry["dtype"]], 0, name)

    def test_what_ours_accepts_the_package_reads_alike(self):
        """Random damage: never a crash, and never accepted where the package refuses."""
        rng = random.Random(4)
        tensors = {name: row for name, row in list(make_tensors(4).items())[6:9]}
        whole = package_bytes(tensors, {"k": "v"})
        header_end = 8 + int.from_bytes(whole[:8], "little")
        accepted = refused = 0
        for _ in range(400):
            damaged = bytearray(whole)
            for _ in range(rng.choice([1, 1, 1, 2, 5])):
                at = rng.randrange(header_end)
                damaged[at] = rng.choice(b'0123456789{}[],:" ABFIU_x\x00\xff')
            if rng.random() < 0.2:
                damaged = damaged[:rng.randrange(len(damaged))]
            self.path.write_bytes(damaged)
            result = run_tool("dump", self.path)
            self.assertIn(result.returncode, (0, 2), (damaged, result))
            if result.returncode == 2:
                refused += 1
                continue
            accepted += 1
            read = safetensors.deserialize(bytes(damaged))
            expected = {name: (row["dtype"], None, row["shape"], bytes(row["data"]))
                        for name, row in read}
            lines = [line for line in result.stdout.decode().split("\n") if line[:6] == "tensor"]
            self.assertEqual(lines, to_lines(expected, {}))
        self.assertGreater(accepted, 10)
        self.assertGreater(refused, 100)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
