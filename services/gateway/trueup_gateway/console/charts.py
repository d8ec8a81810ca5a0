"""Charts: numbers as places in a small picture. Pure: a template draws what stands here, with its numbers beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

WIDTH: Final = 240
HEIGHT: Final = 48
PADDING: Final = 4
POINTS_MAX: Final = 168
FAST: Final = 1.0
"""A budget that burns faster than this will be used up before its window ends."""


@dataclass(frozen=True)
class Line:
    """A line over time, in pieces where nothing came due, with the target as another."""

    pieces: tuple[str, ...]
    target_y: float | None
    last: tuple[float, float]
    low: float
    high: float
    width: int = WIDTH
    height: int = HEIGHT


def line(values: Sequence[float | None], target: float | None = None) -> Line | None:
    """The line through values, scaled to what there is; None where nothing is to be drawn."""
    kept = list(values)[-POINTS_MAX:]
    known = [value for value in kept if value is not None]
    if not known:
        return None
    bounds = [*known, *([target] if target is not None else [])]
    low, high = min(bounds), max(bounds)
    if high - low < 1e-9:
        low, high = max(0.0, low - 0.01), min(1.0, high + 0.01) if high <= 1 else high + 0.01
    step = (WIDTH - 2 * PADDING) / max(len(kept) - 1, 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(kept):
        if value is None:
            pieces.append([])
            continue
        pieces[-1].append((PADDING + place * step, _height(value, low, high)))
    drawn = [piece for piece in pieces if piece]
    return Line(
        pieces=tuple(" ".join(f"{x:.1f},{y:.1f}" for x, y in _seen(piece)) for piece in drawn),
        target_y=None if target is None else round(_height(target, low, high), 1),
        last=(round(drawn[-1][-1][0], 1), round(drawn[-1][-1][1], 1)),
        low=low,
        high=high,
    )


def _seen(piece: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """One point alone is drawn as a short dash, or nobody would see it."""
    return piece if len(piece) > 1 else [(piece[0][0] - 1.5, piece[0][1]), (piece[0][0] + 1.5, piece[0][1])]


def _height(value: float, low: float, high: float) -> float:
    return HEIGHT - PADDING - (value - low) / (high - low) * (HEIGHT - 2 * PADDING)


def of_level(level: Mapping[str, Any]) -> Line | None:
    """The picture of one service level: its ratio hour by hour, and what was promised."""
    series = level.get("series")
    if not isinstance(series, list):
        return None
    target = level.get("target")
    values = [_number(point.get("ratio")) if isinstance(point, Mapping) else None for point in series]
    return line(values, _number(target))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def percent(value: Any) -> str:
    """A ratio as a person reads it: never rounded up to a hundred."""
    number = _number(value)
    if number is None:
        return "–"
    if 0.9999 < number < 1:
        return "99.99 %"
    return f"{number * 100:.2f}".rstrip("0").rstrip(".") + " %"


def budget(level: Mapping[str, Any]) -> tuple[float, str]:
    """What is left of the error budget, as a width of hundred, and how it looks."""
    left = _number(level.get("error_budget_remaining"))
    if left is None:
        return 0.0, "neutral"
    tone = "bad" if left <= 0 else "care" if left < 0.25 else "good"
    return round(max(0.0, min(1.0, left)) * 100, 1), tone


BURN_WIDE: Final = 15.0
"""The rate that fills a bar."""


def burn_width(rate: float) -> float:
    """How long the bar of a burn rate is, of a hundred: by its root, so that 1 and 14 can both be told apart from 0."""
    return round(100 * sqrt(min(1.0, max(0.0, rate) / BURN_WIDE)), 1)


def burns(level: Mapping[str, Any]) -> list[tuple[int, str, str, float]]:
    """The burn rates by window: seconds, rate, how it looks, and the length of its bar."""
    found = []
    for item in level.get("burn_rates") or []:
        rate = _number(item.get("rate")) or 0.0
        tone = "bad" if rate > 6 else "care" if rate > FAST else "good"
        found.append(
            (int(item.get("window_seconds") or 0), f"{rate:.1f}".rstrip("0").rstrip("."), tone, burn_width(rate))
        )
    return found
