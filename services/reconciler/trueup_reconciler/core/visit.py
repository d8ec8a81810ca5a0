"""When to look again: often while something is open, more and more rarely while nothing changes, at a bounded rate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import Phase
from trueup_common.contracts.task import ProbeElement, ProbeTask
from trueup_reconciler.core.element import ElementRow, Turn, turn

STEADY_SECONDS: Final = (60.0, 300.0, 1800.0, 7200.0, 43200.0, 86400.0)
"""1 m, 5 m, 30 m, 2 h, 12 h, then daily: each look that finds the same moves one on, a change starts over."""
DRIFT_SECONDS: Final = (60.0, 120.0, 300.0, 900.0)
"""A drift that is open is a person's or a repair's: whether it is over is seen within a quarter of an hour."""
UNKNOWN_SECONDS: Final = (2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
CONVERGING_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
ANSWER_SECONDS: Final = (60.0, 120.0, 300.0, 900.0)
"""How long a probe may stay unanswered before it is asked again."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds of visits per tenant and system."""

    visits_per_second: float = 20.0
    burst: int = 40


class PaceRow(ForwardContract):
    """How far ahead one (tenant, system) has already spent its rate."""

    pace_key: str
    spent_until: Instant
    state_version: int = 1


def entry(table: tuple[float, ...], count: int) -> timedelta:
    """The entry for a count; the last one for all beyond."""
    return timedelta(seconds=table[min(count, len(table) - 1)])


def next_visit(
    phase: Phase, *, same_count: int, unknown_count: int, now: datetime, window_until: datetime | None
) -> datetime:
    """When to look again after an observation. `same_count` counts earlier observations in a row with this phase."""
    if phase is Phase.UNKNOWN:
        return now + entry(UNKNOWN_SECONDS, unknown_count)
    if phase is Phase.CONVERGING and window_until is not None:
        return min(now + entry(CONVERGING_SECONDS, same_count), max(window_until, now))
    return now + entry(DRIFT_SECONDS if phase is Phase.DRIFT else STEADY_SECONDS, same_count)


def admit(row: PaceRow, pace: Pace, now: datetime) -> tuple[PaceRow, datetime]:
    """Spend one visit: the row as it stands then and when this visit may go (now, or later)."""
    slot = timedelta(seconds=1 / pace.visits_per_second)
    spent = max(row.spent_until, now) + slot
    return row.evolve(spent_until=spent), max(now, spent - slot * pace.burst)


@dataclass(frozen=True, slots=True)
class Round:
    """What one look at due elements leads to."""

    elements: tuple[ElementRow, ...]
    paces: tuple[PaceRow, ...]
    probes: tuple[ProbeTask, ...]


def pace_key(row: ElementRow) -> str:
    """Whose rate a visit spends."""
    return f"{row.tenant}:{row.system}"


def find_pace_key(tenant: str, system: str) -> str:
    """Whose rate a look for an unknown outcome spends: it has its own, so that neither waits for the other."""
    return f"find:{tenant}:{system}"


def plan(rows: Iterable[ElementRow], paces: Mapping[str, PaceRow], pace: Pace, now: datetime) -> Round:
    """One probe per object for all its due elements; what the rate does not admit is put off, never dropped."""
    objects: dict[str, list[ElementRow]] = {}
    for row in sorted(rows, key=lambda item: (item.next_visit_at or now, item.object_key, item.element)):
        objects.setdefault(row.object_key, []).append(row)
    spent = dict(paces)
    ahead = dict(paces)
    elements: list[ElementRow] = []
    probes: list[ProbeTask] = []
    for due in objects.values():
        key = pace_key(due[0])
        before = ahead.get(key) or PaceRow(pace_key=key, spent_until=now, state_version=0)
        ahead[key], at = admit(before, pace, now)
        if at > now:
            # Put off one behind the other, so that they come due at the rate; only a visit that goes is paid for.
            elements += [row.evolve(next_visit_at=at) for row in due]
            continue
        spent[key] = ahead[key]
        visit_id = derived_id("vis", due[0].object_key, *(f"{row.element}:{row.visits_count + 1}" for row in due))
        elements += [_asked(row, visit_id, now) for row in due]
        probes.append(_probe(due, visit_id))
    changed = tuple(row for key, row in spent.items() if row is not paces.get(key))
    return Round(tuple(elements), changed, tuple(probes))


def _asked(row: ElementRow, visit_id: str, now: datetime) -> ElementRow:
    unanswered = row.unanswered_count + 1 if row.visit_id is not None else 0
    asked: ElementRow = turn(row, Turn.VISIT).evolve(
        visit_id=visit_id,
        visits_count=row.visits_count + 1,
        unanswered_count=unanswered,
        visit_asked_at=now,
        next_visit_at=now + entry(ANSWER_SECONDS, unanswered),
    )
    return asked


def _probe(due: list[ElementRow], visit_id: str) -> ProbeTask:
    newest = max(due, key=lambda row: row.rank)
    return ProbeTask(
        visit_id=visit_id,
        tenant=newest.tenant,
        system=newest.system,
        resource=newest.resource,
        command_id=newest.command_id,
        elements=tuple(ProbeElement.model_validate(row.probe) for row in due),
    )
