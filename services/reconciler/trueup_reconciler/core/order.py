"""Which drift of one business object comes first: what an element shows is brought right before the element itself.

A cache that is purged while its post is in the trash fills with pages that lack it. So a drift waits while something
upstream has drifted, or was not looked at lately; and what was repaired upstream has everything downstream looked at
again. One repair of the last in line is enough then, and often none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.states import Phase
from trueup_reconciler.core.element import ElementRow

FRESH: Final = timedelta(seconds=60)
"""So much older than the sight of a difference downstream, the last look upstream says nothing of what caused it."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What comes before the repair of an element: by name, and those rows that are to be looked at first."""

    names: tuple[str, ...] = ()
    to_look: tuple[ElementRow, ...] = ()


def soon(row: ElementRow, now: datetime) -> ElementRow:
    """Due now; a look that is under way began before what is asked for and does not count."""
    due: ElementRow = row.evolve(next_visit_at=now, visit_id=None, visit_asked_at=None, same_count=0)
    return due


def ahead(row: ElementRow, seen_at: datetime, others: Iterable[ElementRow], now: datetime) -> Ahead:
    """What a difference that was seen in this element waits for. What cannot be read holds nothing up."""
    names: list[str] = []
    to_look: list[ElementRow] = []
    for other in _upstream(row, others):
        if blocks(other):
            names.append(other.element)
            if other.obligation_id is None and not other.awaited:
                to_look.append(other.evolve(awaited=True))  # within its window: whoever waits hears of its end
        elif other.phase is Phase.HEALTHY and other.observed_at is not None and seen_at - other.observed_at > FRESH:
            names.append(other.element)
            to_look.append(soon(other, now).evolve(awaited=True))
    return Ahead(tuple(sorted(names)), tuple(to_look))


def blocks(row: ElementRow) -> bool:
    """True while what is downstream of this element has to wait."""
    if row.retired_by is not None:
        return False
    return row.obligation_id is not None or row.awaited or row.phase is Phase.CONVERGING


def following(before: ElementRow, after: ElementRow, others: Iterable[ElementRow], now: datetime) -> list[ElementRow]:
    """What is looked at again because of what became of this element: what waited for it, and what it was repaired
    under. Nothing while it still blocks."""
    if blocks(after):
        return []
    over = before.obligation_id is not None
    return [
        soon(other, now)
        for other in others
        if other.retired_by is None
        and after.element in other.downstream_of
        and same_object(after, other)
        and (over or after.element in other.waits_for)
    ]


def _upstream(row: ElementRow, others: Iterable[ElementRow]) -> list[ElementRow]:
    return [
        other
        for other in others
        if other.element in row.downstream_of and other.retired_by is None and same_object(row, other)
    ]


def same_object(one: ElementRow, other: ElementRow) -> bool:
    """True for two elements of one business object."""
    return one.object_id is not None and (one.tenant, one.object_type, one.object_id) == (
        other.tenant,
        other.object_type,
        other.object_id,
    )


def concerns(row: ElementRow) -> bool:
    """True where the other elements of the object may matter to what becomes of this one."""
    return row.object_id is not None and bool(row.downstream_of or row.obligation_id or row.awaited)
