"""How an incident ends: one repair goes ahead to try, and when it held the others follow, a few at a time.

What is let go is judged anew at the gateway: superseded, expired and revoked ones are refused there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trueup_repair_planner.core.incident import Alarm, Event, IncidentRow, Status, advance, probe_later
from trueup_repair_planner.core.repair import RepairRow
from trueup_repair_planner.core.repair import Status as RepairStatus

LOOK_SECONDS: Final = 2.0
RELEASE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of an incident's slice: open exceptions, repairs that are held, and those at work."""

    open_count: int
    held_count: int
    flying_count: int
    held: Sequence[RepairRow]
    probe: RepairRow | None


Turned = tuple[IncidentRow, tuple[RepairRow, ...]]
"""The incident, and the repairs that are let go."""


def turn(row: IncidentRow, standing: Standing, now: datetime, alarm: Alarm) -> Turned:
    """An incident whose time has come."""
    match row.status:
        case Status.OPEN:
            moved, released = _open(row, standing, now, alarm)
        case Status.PROBING:
            moved, released = _probing(row, standing, now, alarm)
        case Status.RECOVERING:
            moved, released = _recovering(row, standing, now, alarm)
        case _:
            return row.evolve(due_at=None), ()
    return moved.evolve(held_count=max(0, standing.held_count - len(released))), released


def _open(row: IncidentRow, standing: Standing, now: datetime, alarm: Alarm) -> Turned:
    if standing.open_count == 0 and standing.held_count == 0:  # an exception may be counted with another cause by now
        return _over(row, now), ()
    if not standing.held:
        return probe_later(
            row, now, alarm
        ), ()  # nothing that runs by itself: people mend these, and it is looked again
    probe = _released(standing.held[0], now)
    moved = advance(row, Event.PROBE, now, repair_id=probe.repair_id)
    return moved.evolve(probe_repair_id=probe.repair_id, due_at=now + timedelta(seconds=LOOK_SECONDS)), (probe,)


def _probing(row: IncidentRow, standing: Standing, now: datetime, alarm: Alarm) -> Turned:
    probe = standing.probe
    if probe is not None and probe.in_flight:
        return row.evolve(due_at=now + timedelta(seconds=LOOK_SECONDS)), ()
    if probe is not None and probe.status is RepairStatus.DONE:
        recovering = advance(row, Event.PROBE_HELD, now, repair_id=probe.repair_id)
        return recovering.evolve(relapses_count=0, probes_count=0, due_at=now), ()
    return probe_later(advance(row, Event.PROBE_FAILED, now), now, alarm), ()


def _recovering(row: IncidentRow, standing: Standing, now: datetime, alarm: Alarm) -> Turned:
    released = tuple(_released(item, now) for item in standing.held[: alarm.released_per_second])
    if not released and standing.flying_count == 0:
        return _over(row, now), ()
    return row.evolve(due_at=now + timedelta(seconds=RELEASE_SECONDS)), released


def _over(row: IncidentRow, now: datetime) -> IncidentRow:
    closed: IncidentRow = advance(row, Event.OVER, now).evolve(closed_at=now, due_at=None, probe_repair_id=None)
    return closed


def _released(repair: RepairRow, now: datetime) -> RepairRow:
    free: RepairRow = repair.evolve(held=False, due_at=now)
    return free
