"""How the judges speak."""

from __future__ import annotations

from tests.simulation.engine import Violation


def demand(holds: bool, text: str) -> None:
    """Raise Violation where something does not hold."""
    if not holds:
        raise Violation(text)
