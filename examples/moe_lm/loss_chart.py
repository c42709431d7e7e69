"""Loss curves as an SVG picture."""

from __future__ import annotations

from html import escape
from pathlib import Path

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 20, 50
_COLOURS = ("#1f5fbf", "#c4561c", "#2d8a4e", "#7a4fa3")


def write_chart(path: Path, curves: dict[str, list[tuple[int, float]]]) -> None:
    """curves: by name, (step, loss in nats a byte). Names that differ behind the first comma alone
    have one colour."""
    kinds = list(dict.fromkeys(name.partition(",")[0] for name in curves))
    points = [p for curve in curves.values() for p in curve]
    last = max(max(step for step, _ in points), 1)
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def x(step: float) -> float:
        return _LEFT + step / last * (_WIDTH - _LEFT - _RIGHT)

    def y(loss: float) -> float:
        return _TOP + (high - loss) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def text(at_x: float, at_y: float, words: str, more: str = "") -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" {more}>{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for i in range(5):
        loss, step = low + i * (high - low) / 4, round(i * last / 4)
        parts.append(
            f'<path d="M{_LEFT} {y(loss):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd" fill="none"/>'
        )
        parts.append(text(_LEFT - 6, y(loss) + 4, f"{loss:.2f}", 'text-anchor="end"'))
        parts.append(text(x(step), _HEIGHT - _BOTTOM + 18, str(step), 'text-anchor="middle"'))
    parts.append(text(_WIDTH / 2, _HEIGHT - 10, "step", 'text-anchor="middle"'))
    parts.append(text(_LEFT, _TOP - 6, "loss, nats a byte"))
    for i, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[kinds.index(name.partition(",")[0]) % len(_COLOURS)]
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        right = f'text-anchor="end" fill="{colour}"'
        parts.append(text(_WIDTH - _RIGHT, _TOP + 14 + 18 * i, name, right))
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
