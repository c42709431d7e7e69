"""Plain values that describe a layer and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import math

from .errors import MokShapeError

PRECISIONS = ("bf16", "fp8_block", "mxfp8")


def require_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        expected = "'bf16', 'fp8_block' or 'mxfp8'"
        raise MokShapeError(f"precision: expected {expected}, found {precision!r}")


@dataclass(frozen=True)
class Activation:
    """hidden = g * sigmoid(alpha * g) * (u + beta), g = min(gate, limit), u = clamp(up, limit)."""

    limit: float = math.inf
    alpha: float = 1.0
    beta: float = 0.0

    @staticmethod
    def of(
        name: str | Activation, limit: float | None = None, alpha: float | None = None
    ) -> Activation:
        """"swiglu", "gpt-oss" (limit 7, alpha 1.702, beta 1) or an Activation; the numbers replace
        its own."""
        if isinstance(name, Activation):
            return replace(
                name,
                limit=name.limit if limit is None else float(limit),
                alpha=name.alpha if alpha is None else float(alpha),
            )
        known = {"swiglu": (math.inf, 1.0, 0.0), "gpt-oss": (7.0, 1.702, 1.0)}
        if name not in known:
            raise MokShapeError(
                f"activation: expected {' or '.join(known)} or an Activation, found {name!r}"
            )
        return Activation.of(Activation(*known[name]), limit, alpha)


@dataclass(frozen=True)
class LayerShape:
    """A layer over all ranks of a group.

    Attributes:
        hidden: H, a multiple of 8.
        intermediate: I, a multiple of 8.
        num_experts: E, of all ranks. Rank r owns the next E // R, the first E % R ranks one more.
        top_k: K, 1..128.
        shared_intermediate: S, a multiple of 8; 0: no shared expert.
        precision: of the routed experts' products: "bf16", "fp8_block" or "mxfp8".
    """

    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    shared_intermediate: int = 0
    activation: Activation = field(default_factory=Activation)
    precision: str = "bf16"

    @property
    def is_fp8(self) -> bool:
        return self.precision != "bf16"


@dataclass(frozen=True)
class Tuning:
    """How the work is cut. No result depends on any of it.

    Attributes:
        minibatch_rows: b, a multiple of 128; 0: the default of the library.
        macrobatch_rows: B, rows of the ring, a multiple of 128, at least b.
        context_rows: routed rows whose gate and up a call keeps for its backward, a multiple of
            128; -1: every row. The backward recomputes the others.
        keep_x: keep x of these rows as well (CPU only).
        max_workers: CPU: threads of a rank; CUDA: multiprocessors of a pass; 0: all.
        max_tokens: the most tokens of a rank in one call, the same on every rank. 0, for groups of
            one rank only: `moe` takes the call's tokens, rounded up to a power of two.
        fp8_dispatch: in FP8 a forward pulls x in FP8 instead of BF16, to the same bits (CUDA:
            always).
    """

    minibatch_rows: int = 0
    macrobatch_rows: int = 131072
    context_rows: int = -1
    keep_x: bool = False
    max_workers: int = 0
    max_tokens: int = 0
    fp8_dispatch: bool = True
