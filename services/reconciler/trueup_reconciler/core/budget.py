"""How often an element is repaired by itself, and where its drift goes: repaired now, later, or by a person (R9).

Each repair that fails or does not hold makes the next one wait longer, and after the last one comes a person. A value
that somebody puts back after each repair has two owners: no machine decides that. What held for long starts over.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import Drift
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_reconciler.core.element import ElementRow, Turn

IN_FLIGHT: Final = frozenset({"PLANNED", "WAITING_APPROVAL", "EXECUTING", "VERIFYING"})
"""Statuses in which the planner has a repair at work."""


class Way(StrEnum):
    """Who repairs a drift."""

    AUTO_REPAIR = "AUTO_REPAIR"
    RETRYABLE = "RETRYABLE"
    MANUAL = "MANUAL"
    ESCALATED = "ESCALATED"


TURN: Final = {
    Way.AUTO_REPAIR: Turn.MENDABLE,
    Way.RETRYABLE: Turn.MENDABLE_AGAIN,
    Way.MANUAL: Turn.NEEDS_PERSON,
    Way.ESCALATED: Turn.SPENT,
}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many repairs by itself, how far apart, and how long an element must hold to be given a fresh budget."""

    repairs_max: int = 4
    delays_seconds: tuple[float, ...] = (0.0, 60.0, 600.0, 3600.0)
    holds_seconds: float = 6 * 3600.0
    fights_max: int = 2


@dataclass(frozen=True, slots=True)
class Route:
    """Where a drift goes. `not_before` is when the planner may begin its repair; `code` says why a person has it."""

    way: Way
    not_before: datetime | None = None
    code: str = "drifted"


def kind_of(seen: Observation) -> Drift:
    """How the element differs."""
    return Drift.MISSING if seen.verdict is ProbeVerdict.MISSING else Drift.DIFFERENT


def kind_of_row(row: ElementRow) -> Drift:
    """How the element differed when it was last seen."""
    return Drift.MISSING if row.verdict == ProbeVerdict.MISSING.value else Drift.DIFFERENT


def counted(row: ElementRow, seen: Observation, *, now: datetime, budget: Budget) -> ElementRow:
    """The row with what a drift that is seen now says of earlier repairs."""
    foreign = digest({"verdict": seen.verdict.value, "value": seen.value})
    if row.tried_at is None or _held(row, now, budget):
        fresh: ElementRow = row.evolve(repairs_count=0, fights_count=0, foreign_sha256=foreign, tried_at=None)
        return fresh
    again = row.fights_count + 1 if foreign == row.foreign_sha256 else 0
    counted_row: ElementRow = row.evolve(fights_count=again, foreign_sha256=foreign)
    return counted_row


def _held(row: ElementRow, now: datetime, budget: Budget) -> bool:
    """True where the element was healthy after its last repair, and that repair is long past."""
    if row.tried_at is None or row.healthy_at is None or row.healthy_at < row.tried_at:
        return False
    return now - row.tried_at >= timedelta(seconds=budget.holds_seconds)


def route(row: ElementRow, drift: Drift, *, now: datetime, budget: Budget) -> Route:
    """Where a drift of this element goes, from what is known of its repairs."""
    if row.repair is None or drift.value not in row.repair.get("mends", ()):
        return Route(Way.MANUAL)
    if not row.automatic:
        return Route(Way.ESCALATED, code=row.escalated_code or "repairs_exhausted")
    if row.fights_count >= budget.fights_max:
        held = row.healthy_at is not None and row.tried_at is not None and row.healthy_at >= row.tried_at
        return Route(Way.ESCALATED, code="owners_fight" if held else "repairs_exhausted")
    if row.repairs_count >= budget.repairs_max:
        return Route(Way.ESCALATED, code="repairs_exhausted")
    if row.repairs_count == 0:
        return Route(Way.AUTO_REPAIR)
    delay = budget.delays_seconds[min(row.repairs_count, len(budget.delays_seconds) - 1)]
    since = row.tried_at or now
    return Route(Way.RETRYABLE, not_before=since + timedelta(seconds=delay))
