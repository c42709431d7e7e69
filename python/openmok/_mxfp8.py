"""MXFP8 matrices of a caller's: quantised by torch's own operations, and laid into an Fp8Weights.

A matrix [M, N] (or [E, M, N]) of multiples of 128 is elements of the same shape in float8_e4m3fn
and scales uint8 [M / 128, N / 128, 32, 16] (or with E in front): E8M0, one per 32 elements of a
row, in tiles of 128 x 4 as cuBLAS reads them (docs/precision.md of the project).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import _core
from .errors import MokShapeError

_TILE, _BLOCK, _MAX = 128, 32, 448.0
_NAN_SCALE, _NAN_ELEMENT = 0xFF, 0x7F

Quantized = tuple[torch.Tensor | None, torch.Tensor | None]


def mxfp8_quantize(
    x: torch.Tensor, normal: bool, transposed: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """x [M, N] or [E, M, N], BF16; M, N multiples of 128. Returns (elements, scales) with blocks
    along N, then those of the transposed matrix, [.., N, M]; None for what is not asked for."""
    if x.dim() not in (2, 3) or x.shape[-1] % _TILE or x.shape[-2] % _TILE:
        raise MokShapeError(
            "mxfp8_quantize: expected [M, N] or [E, M, N] with M and N multiples of 128, found "
            f"{list(x.shape)}"
        )
    if x.dtype != torch.bfloat16:
        raise MokShapeError(f"mxfp8_quantize: expected dtype torch.bfloat16, found {x.dtype}")
    x = x.detach()
    nothing: Quantized = None, None
    return (
        *(_by_rows(x) if normal else nothing),
        *(_by_rows(x.transpose(-1, -2)) if transposed else nothing),
    )


def _by_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = x.float().reshape(*x.shape[:-1], -1, _BLOCK)
    amax = blocks.abs().amax(-1)
    # amax = m * 2^e with 0.5 <= m < 1; the smallest k with amax <= 448 * 2^k = 0.875 * 2^(k + 9).
    m, e = torch.frexp(amax)
    k = (e - torch.where(m <= _MAX / 512, 9, 8)).clamp(min=-127)
    bad = ~amax.isfinite()
    scales = torch.where(amax == 0, 0, k + 127).masked_fill(bad, _NAN_SCALE).to(torch.uint8)
    elements = torch.ldexp(blocks, -k.unsqueeze(-1)).to(torch.float8_e4m3fn).view(torch.uint8)
    elements = elements.masked_fill(bad.unsqueeze(-1), _NAN_ELEMENT)
    return elements.view(torch.float8_e4m3fn).reshape(x.shape), _in_tiles(scales)


def _in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """[.., M, N / 32] -> [.., M / 128, N / 128, 32, 16]."""
    *batch, rows, blocks = scales.shape
    parts = scales.reshape(-1, rows // _TILE, 4, 32, blocks // 4, 4)
    tiles = parts.permute(0, 1, 4, 3, 2, 5)
    return tiles.reshape(*batch, rows // _TILE, blocks // 4, 32, 16)


# ---- Laid into an Fp8Weights ------------------------------------------------------------------
class Matrix(NamedTuple):
    """One orientation of all experts: elements [E_l, outer, k], and their scales."""

    elements: torch.Tensor
    scales: torch.Tensor


# In the memory's order.
_PLACES = ("gate", "up", "down", "gate_t", "up_t", "down_t")


def require_matrix(name: str, matrix: Matrix, shape: tuple[int, ...]) -> None:
    elements, scales = matrix
    if elements.dtype != torch.float8_e4m3fn or scales.dtype != torch.uint8:
        raise MokShapeError(
            f"{name}: expected (float8_e4m3fn, uint8), found ({elements.dtype}, {scales.dtype})"
        )
    if tuple(elements.shape) != shape or any(n % _TILE for n in shape[1:]):
        raise MokShapeError(
            f"{name}: expected elements {list(shape)}, multiples of 128 after the first, found "
            f"{list(elements.shape)}"
        )
    if scales.numel() * _BLOCK != elements.numel():
        raise MokShapeError(
            f"{name}: expected {elements.numel() // _BLOCK} scales, found {scales.numel()}"
        )


def place(
    workspace: _core.Workspace, matrices: dict[str, Matrix], to: _core.Fp8Weights
) -> None:
    """Copies matrices by their places' names; the others hold what they held."""
    memory = torch.from_dlpack(to.data(workspace))
    elements, scales = next(iter(matrices.values()))
    at = 0
    for name in _PLACES:
        for part, size in (0, elements.numel()), (1, scales.numel()):
            if name in matrices:
                source = matrices[name][part].view(torch.uint8).reshape(-1)
                memory[at : at + size].copy_(source)
            at += size  # multiples of 512: no gaps
    to.set_filled()
