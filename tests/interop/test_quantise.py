"""The project's FP8 formats and quantisers against ml_dtypes and against NumPy implementations of
the published rules, which are written here.

Usage: python test_quantise.py QUANTISE_TOOL
"""
import subprocess
import sys
import unittest

import ml_dtypes
import numpy as np

TOOL = sys.argv[1]
E4M3 = ml_dtypes.float8_e4m3fn
BF16 = ml_dtypes.bfloat16
E8M0 = ml_dtypes.float8_e8m0fnu
MAX = 448.0


def run_tool(arguments, data):
    result = subprocess.run([TOOL, *map(str, arguments)], input=data, capture_output=True,
                            timeout=120, check=False)
    if result.returncode != 0:
        raise AssertionError((arguments, result.returncode, result.stderr))
    return result.stdout


def ours_encoded(values):
    return np.frombuffer(run_tool(["encode"], values.astype("<f4").tobytes()), np.uint8)


def e4m3(values):
    """Bytes of float64 or float32 values: ml_dtypes rounds; it does not saturate, so clip. NaN is
    0x7f in the project whatever its sign."""
    with np.errstate(invalid="ignore"):
        bits = np.clip(values, -MAX, MAX).astype(np.float32).astype(E4M3).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7f), bits)


def all_bf16():
    return np.arange(1 << 16, dtype=np.uint16).view(BF16)


# ---- The rules. A block is the last axis; what is behind the matrix's end is zero.
def mxfp8(blocks):
    """OCP MX 1.0 with the scale rounded up: X = 2^k, k = ceil(log2(amax / 448)), from frexp in
    FP64, clamped to E8M0's range; elements v / X."""
    with np.errstate(invalid="ignore", over="ignore"):
        v = blocks.astype(np.float64)
    amax = np.max(np.abs(v), axis=-1)
    finite = np.isfinite(amax)
    mantissa, exponent = np.frexp(np.where(finite, amax, 0.0))  # amax = mantissa * 2^exponent
    # 448 is 0.875 * 2^9.
    k = exponent - 9 + (mantissa > 0.875)
    k = np.where(amax == 0.0, -127, np.maximum(k, -127))
    scales = np.where(finite, k + 127, 255).astype(np.uint8)
    with np.errstate(invalid="ignore"):
        scaled = v / np.ldexp(1.0, k)[..., None]
    elements = np.where(finite[..., None], e4m3(scaled), np.uint8(0x7f))
    return elements, scales


def fp8_block(blocks):
    """scale = amax / 448 and v / scale in FP32; no division by the scale of zeros."""
    v = blocks.astype(np.float32)
    amax = np.max(np.abs(v), axis=-1)
    finite = np.isfinite(amax)
    with np.errstate(invalid="ignore", divide="ignore"):
        scales = np.where(finite, amax, np.float32(0)) / np.float32(MAX)
        divisor = np.where(scales == 0, np.float32(1), scales)[..., None]
        elements = np.where(finite[..., None], e4m3(v / divisor), np.uint8(0x7f))
    return elements, np.where(finite, scales, np.float32(np.nan)).astype(np.float32)


RECIPES = {"fp8_block": (128, fp8_block), "mxfp8": (32, mxfp8)}


def to_tiles(scales):
    """[outer][inner] in the tiles of cuBLAS's "1D Block Scaling Factors Layout": each 128 x 4 as 32
    rows of 4 groups of 4, zero behind the end."""
    outer, inner = (-(-scales.shape[0] // 128), -(-scales.shape[1] // 4))
    padded = np.zeros((outer * 128, inner * 4), np.uint8)
    padded[:scales.shape[0], :scales.shape[1]] = scales
    tiles = padded.reshape(outer, 4, 32, inner, 4).transpose(0, 3, 2, 1, 4)
    return tiles.reshape(-1)


def expected(recipe, matrix):
    """Bytes of elements and scales of blocks along the last axis of `matrix`."""
    size, rule = RECIPES[recipe]
    rows, cols = matrix.shape
    padded = np.zeros((rows, -(-cols // size) * size), BF16)
    padded[:, :cols] = matrix
    elements, scales = rule(padded.reshape(rows, -1, size))
    elements = elements.reshape(padded.shape).copy()
    elements[:, cols:] = 0
    return elements.tobytes(), scales_bytes(recipe, scales)


def scales_bytes(recipe, scales):
    return (to_tiles(scales) if recipe == "mxfp8" else scales.astype("<f4")).tobytes()


def expected_weight(recipe, matrix):
    if recipe == "mxfp8":
        return expected(recipe, matrix)
    rows, cols = matrix.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-cols // 128) * 128), BF16)
    padded[:rows, :cols] = matrix
    blocks = padded.reshape(padded.shape[0] // 128, 128, -1, 128).transpose(0, 2, 1, 3)
    elements, scales = fp8_block(blocks.reshape(*blocks.shape[:2], -1))
    elements = elements.reshape(blocks.shape).transpose(0, 2, 1, 3).reshape(padded.shape)[:rows]
    elements = elements.copy()
    elements[:, cols:] = 0
    return elements.tobytes(), scales_bytes(recipe, scales)


# ---- Sources
def random_matrix(rng, rows, cols):
    exponents = rng.integers(-20, 20, (rows, -(-cols // 32))).repeat(32, axis=1)[:, :cols]
    return (rng.standard_normal((rows, cols)) * np.exp2(exponents)).astype(BF16)


def any_bits(rng, rows, cols):
    """Every exponent, so most blocks are of wide range; some hold infinities and NaNs."""
    return rng.integers(0, 1 << 16, (rows, cols), dtype=np.uint16).view(BF16)


def boundary_matrix(cols):
    """One row a case: zeros, 1e-38, least and largest values, around 448 * 2^k, infinity, NaN."""
    rows = [np.zeros(cols), np.full(cols, -0.0), np.full(cols, 1e-38), np.full(cols, 2.0**-133)]
    rows.append(np.full(cols, float(ml_dtypes.finfo(BF16).max)))
    rng = np.random.default_rng(5)
    for k in range(-126, 119, 4):
        edge = np.array([448.0 * 2.0**k]).astype(BF16).view(np.uint16)
        for step in (-1, 0, 1):
            row = rng.uniform(-448, 448, cols) * 2.0**k
            neighbour = (edge.astype(np.int64) + step).astype(np.uint16).view(BF16)
            row[rng.integers(cols)] = float(neighbour[0])
            rows.append(row)
    for bad in (np.inf, -np.inf, np.nan):
        for at in (0, cols // 2, cols - 1):
            row = rng.standard_normal(cols)
            row[at] = bad
            rows.append(row)
    return np.stack(rows).astype(BF16)


class Formats(unittest.TestCase):
    def test_every_byte_decodes_as_ml_dtypes_has_it(self):
        codes = np.arange(256, dtype=np.uint8)
        found = np.frombuffer(run_tool(["decode"], codes.tobytes()), "<f4")
        np.testing.assert_array_equal(found, codes.view(E4M3).astype(np.float32))
        np.testing.assert_array_equal(np.signbit(found[:255]) & ~np.isnan(found[:255]),
                                      (codes[:255] >= 128) & ~np.isnan(found[:255]))

    def test_every_bf16_encodes_as_ml_dtypes_has_it(self):
        values = all_bf16().astype(np.float32)
        np.testing.assert_array_equal(ours_encoded(values), e4m3(values))

    def test_boundaries_and_random_floats_encode_as_ml_dtypes_has_them(self):
        codes = np.arange(127, dtype=np.uint8).view(E4M3).astype(np.float32)
        outside = [464, 480, 1e30, 1e-45, 1e-40]
        edges = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2, outside])
        edges = edges.astype(np.float32)
        near = np.concatenate([edges, np.nextafter(edges, np.float32(np.inf)),
                               np.nextafter(edges, np.float32(-np.inf))])
        rng = np.random.default_rng(1)
        some = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
        middle = (rng.standard_normal(1 << 20) * np.exp2(rng.uniform(-11, 9, 1 << 20)))
        values = np.concatenate([near, -near, some, middle.astype(np.float32)])
        np.testing.assert_array_equal(ours_encoded(values), e4m3(values))


class Scales(unittest.TestCase):
    def test_every_amax_has_rceils_scale(self):
        """Two statements of the rule: the one above, and the FP32 one: amax * (1 / 448) rounded up
        to E8M0."""
        sources = all_bf16()[:0x8000].reshape(-1, 1)
        found = run_tool(["rows", "mxfp8", len(sources), 1], sources.tobytes())
        tiles = np.frombuffer(found[len(sources) * 32:], np.uint8)
        np.testing.assert_array_equal(tiles, to_tiles(mxfp8(sources)[1][:, None]))

        with np.errstate(invalid="ignore"):
            quotient = sources[:, 0].astype(np.float32) * np.float32(1.0 / MAX)
            amax = sources[:, 0].astype(np.float64)
        bits = quotient.view(np.uint32)
        exponent, fraction = bits >> 23, bits & 0x7fffff
        up = np.where(exponent == 0, fraction > 0x400000, fraction != 0)
        rounded_up = np.where(np.isfinite(quotient), exponent + up, 255).astype(np.uint8)
        np.testing.assert_array_equal(tiles, to_tiles(rounded_up[:, None]))

        # What the scale promises, by ml_dtypes's own E8M0.
        value = rounded_up.view(E8M0).astype(np.float64)
        finite = np.isfinite(amax)
        self.assertTrue((amax[finite] <= MAX * value[finite]).all())
        tight = finite & (rounded_up > 0)
        self.assertTrue((amax[tight] > MAX * value[tight] / 2).all())


class Quantisers(unittest.TestCase):
    def check(self, matrix):
        shape = matrix.shape
        transposed = np.ascontiguousarray(matrix.T)
        for recipe in RECIPES:
            by_rows = b"".join(expected(recipe, matrix))
            by_columns = b"".join(expected(recipe, transposed))
            weight = b"".join(expected_weight(recipe, matrix) + expected_weight(recipe, transposed))
            for what, bytes_expected in (("rows", by_rows), ("columns", by_columns),
                                         ("weights", weight)):
                found = run_tool([what, recipe, *shape], matrix.tobytes())
                with self.subTest(recipe=recipe, what=what, shape=shape):
                    self.assertEqual(len(found), len(bytes_expected))
                    a, b = (np.frombuffer(x, np.uint8) for x in (found, bytes_expected))
                    self.assertEqual(np.flatnonzero(a != b).tolist()[:5], [])

    def test_random_matrices_of_every_tail(self):
        rng = np.random.default_rng(2)
        for rows, cols in ((1, 1), (33, 44), (44, 33), (128, 128), (129, 160), (260, 255),
                           (5, 700)):
            self.check(random_matrix(rng, rows, cols))

    def test_groups_of_few_rows(self):
        rng = np.random.default_rng(3)
        for rows in (1, 33, 44):
            self.check(random_matrix(rng, rows, 130))

    def test_any_bits(self):
        rng = np.random.default_rng(4)
        for rows, cols in ((64, 96), (200, 300)):
            self.check(any_bits(rng, rows, cols))
            # The same without infinities and NaNs, which would make most blocks NaN.
            bits = any_bits(rng, rows, cols).view(np.uint16)
            self.check(np.where(bits & 0x7f80 == 0x7f80, bits & 0x80ff, bits).astype(
                np.uint16).view(BF16))

    def test_boundaries(self):
        for cols in (32, 44, 128, 160):
            self.check(boundary_matrix(cols))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
