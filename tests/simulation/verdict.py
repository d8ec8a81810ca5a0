"""How the judges speak, and the eight invariants of requirement P3 by name."""

from __future__ import annotations

from enum import StrEnum

from tests.simulation.engine import Violation


class P3(StrEnum):
    """What must hold in every run, phrase by phrase."""

    FINAL = "SUCCESS, CANCELLED, RESOLVED and a terminal instance never change"
    INTENT = "one operation has one intent"
    RECEIPT = "CONFIRMED has a receipt"
    WAIT = "a wait has owner and deadline"
    LEASE = "an active activity has a lease"
    TAKEOVER = "a human takeover sends no new effect"
    GRANT = "no effect without a grant"
    OWNER = "no exception without an owner"


def demand(holds: bool, text: str) -> None:
    """Raise Violation where something does not hold."""
    if not holds:
        raise Violation(text)


def demand_p3(phrase: P3, holds: bool, text: str) -> None:
    """Raise Violation, by the name of what is broken."""
    if not holds:
        raise Violation(f"[{phrase}] {text}")
