"""Incidents: many exceptions of one cause are one trouble, with a blast radius, and are repaired like one.

While an incident is open, automatic repairs of its slice are held. One of them goes ahead as a probe, again and again
with growing pauses; once a probe was verified, the others follow at a bounded rate, and each is judged anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from trueup_common.contracts.events import IncidentChanged
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import ForwardContract, Instant, rfc3339
from trueup_common.contracts.states import FailureClass

TRAIL_MAX: Final = 50
NAMES_MAX: Final = 500
"""So many exceptions are named; all are counted."""
SHOWN_MAX: Final = 20
RECENT_MAX: Final = 4
"""Times as many as make an incident are remembered of what is watched."""
_SYSTEM: Final = ("system", "target_system")
_WORKER: Final = ("worker", "worker")
_AGENT: Final = (("agent", "agent"), ("agent_version", "agent_version"))
DIMENSIONS: Final[Mapping[FailureClass, tuple[tuple[str, str], ...]]] = {
    FailureClass.DEPENDENCY_ERROR: (_SYSTEM, _WORKER),
    FailureClass.AUTH_ERROR: (_SYSTEM,),
    FailureClass.TIMEOUT_UNKNOWN: (_SYSTEM, _WORKER),
    FailureClass.PERMISSION_ERROR: (_SYSTEM, ("policy", "policy_sha256")),
    FailureClass.SCHEMA_ERROR: (("adapter", "adapter_version"), *_AGENT),
    FailureClass.DATA_ERROR: (("adapter", "adapter_version"), *_AGENT),
    FailureClass.BUSINESS_RULE_ERROR: _AGENT,
}
"""What exceptions of one class may have in common, and the member of the failure envelope that says it: a target that
fails for everyone, a worker, a policy, an adapter's version, an agent or a version of it. Drift has its own budgets."""

SPREADS: Final = frozenset({"worker"})
"""Causes that lie on this side of the targets: they show in several systems, and what shows in one is that one's."""
SYSTEMS_MIN: Final = 2


class Status(StrEnum):
    """How far an incident has come. WATCHED ones are counted and shown to nobody."""

    WATCHED = "WATCHED"
    OPEN = "OPEN"
    PROBING = "PROBING"
    RECOVERING = "RECOVERING"
    CLOSED = "CLOSED"


class Event(StrEnum):
    """What moves an incident."""

    MANY = "many"
    PROBE = "probe"
    PROBE_FAILED = "probe_failed"
    PROBE_HELD = "probe_held"
    RELAPSE = "relapse"
    OVER = "over"


TABLE: Final[dict[tuple[Status, Event], Status]] = {
    (Status.WATCHED, Event.MANY): Status.OPEN,
    (Status.OPEN, Event.PROBE): Status.PROBING,
    (Status.OPEN, Event.PROBE_HELD): Status.RECOVERING,
    (Status.OPEN, Event.OVER): Status.CLOSED,
    (Status.PROBING, Event.PROBE_FAILED): Status.OPEN,
    (Status.PROBING, Event.PROBE_HELD): Status.RECOVERING,
    (Status.PROBING, Event.OVER): Status.CLOSED,
    (Status.RECOVERING, Event.RELAPSE): Status.OPEN,
    (Status.RECOVERING, Event.OVER): Status.CLOSED,
}
"""Statuses by events; a closed incident stays closed, the next one is another."""

ONGOING: Final = frozenset({Status.OPEN, Status.PROBING, Status.RECOVERING})
HOLDING: Final = frozenset({Status.OPEN, Status.PROBING})
"""While an incident is here, automatic repairs of its slice wait."""


class IllegalEvent(Exception):
    """An event that the table does not have: a fault of the program, not of the world."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """When exceptions become an incident, and how its end is tried out."""

    exceptions_min: int = 5
    window_seconds: float = 600.0
    probe_seconds: float = 30.0
    probe_seconds_max: float = 1800.0
    released_per_second: int = 2
    relapse_min: int = 3


class IncidentRow(ForwardContract):
    """One incident, or what is watched because it may become one. `due_at` is when the planner looks at it."""

    incident_id: str
    tenant: str
    cause_key: str
    cause: dict[str, Any]
    number: int
    status: Status = Status.WATCHED
    owner: str
    recent: list[dict[str, Any]] = Field(default_factory=list)
    """Exceptions within the window while watched: {exception_id, at}."""
    exceptions: list[str] = Field(default_factory=list)
    exceptions_count: int = 0
    blast_radius: dict[str, Any] = Field(default_factory=dict)
    held_count: int = 0
    probes_count: int = 0
    probe_repair_id: str | None = None
    relapses_count: int = 0
    first_at: Instant
    last_at: Instant
    opened_at: Instant | None = None
    closed_at: Instant | None = None
    due_at: Instant | None = None
    trail: list[dict[str, Any]] = Field(default_factory=list)
    version: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """What an exception has in common with others."""

    by: str
    value: str
    system: str | None
    failure_class: str

    def key(self) -> str:
        """One cause of a tenant."""
        return f"{self.by}:{self.value}:{self.system or ''}:{self.failure_class}"


def causes_of(envelope: Mapping[str, Any]) -> tuple[Cause, ...]:
    """The causes that an exception may share with others."""
    system = envelope.get("target_system")
    failure = FailureClass(envelope["failure_class"])
    return tuple(
        Cause(by, str(envelope[member]), str(system) if system and by not in SPREADS else None, failure.value)
        for by, member in DIMENSIONS.get(failure, ())
        if envelope.get(member)
    )


def heard(  # noqa: PLR0917 - one exception and everything that it counts for
    row: IncidentRow | None,
    cause: Cause,
    exception: Mapping[str, Any],
    now: datetime,
    alarm: Alarm,
    owner: str,
) -> IncidentRow:
    """Count an exception of this cause in; `exception` names it, its tenant, case and command."""
    if row is None or row.status is Status.CLOSED:
        row = _watched(row, cause, str(exception["tenant"]), now, owner)
    name = str(exception["exception_id"])
    if row.status is not Status.WATCHED:
        if name in row.exceptions:
            return row
        row = _grown(row, [exception], now)
        return _relapsed(row, now, alarm) if row.status is Status.RECOVERING else row
    since = now - timedelta(seconds=alarm.window_seconds)
    recent = [item for item in row.recent if datetime.fromisoformat(item["at"]) > since]
    recent = [item for item in recent if item["exception_id"] != name]
    recent.append({**exception, "at": rfc3339(now)})
    row = row.evolve(recent=recent[-RECENT_MAX * alarm.exceptions_min :], last_at=now)
    if len(recent) < alarm.exceptions_min or not _is_spread(cause, recent):
        return row
    opened = advance(row, Event.MANY, now, exceptions=len(recent)).evolve(
        opened_at=now,
        first_at=datetime.fromisoformat(recent[0]["at"]),
        due_at=now + timedelta(seconds=alarm.probe_seconds),
        recent=[],
    )
    return _grown(opened, recent, now)


def _is_spread(cause: Cause, recent: Iterable[Mapping[str, Any]]) -> bool:
    """False where one target alone explains it."""
    return cause.by not in SPREADS or len({item.get("system") for item in recent}) >= SYSTEMS_MIN


def _watched(before: IncidentRow | None, cause: Cause, tenant: str, now: datetime, owner: str) -> IncidentRow:
    number = 1 if before is None else before.number + 1
    key = cause.key()
    return IncidentRow(
        incident_id=derived_id("inc", tenant, key, number),
        tenant=tenant,
        cause_key=key,
        cause={"by": cause.by, "value": cause.value, "system": cause.system, "failure_class": cause.failure_class},
        number=number,
        owner=owner,
        first_at=now,
        last_at=now,
    )


def _grown(row: IncidentRow, exceptions: Iterable[Mapping[str, Any]], now: datetime) -> IncidentRow:
    items = list(exceptions)
    radius = {name: list(row.blast_radius.get(name, [])) for name in ("systems", "command_types", "workflows")}
    for item in items:
        for name, member in (("systems", "system"), ("command_types", "command_type"), ("workflows", "workflow_id")):
            value = item.get(member)
            if value and value not in radius[name] and len(radius[name]) < NAMES_MAX:
                radius[name].append(value)
    names = [*row.exceptions, *(str(item["exception_id"]) for item in items)]
    grown: IncidentRow = row.evolve(
        exceptions=names[-NAMES_MAX:],
        exceptions_count=row.exceptions_count + len(items),
        blast_radius=radius,
        last_at=now,
    )
    return grown


def _relapsed(row: IncidentRow, now: datetime, alarm: Alarm) -> IncidentRow:
    """New exceptions while the held ones are let go: too many of them, and it was no recovery."""
    count = row.relapses_count + 1
    if count < alarm.relapse_min:
        counted: IncidentRow = row.evolve(relapses_count=count)
        return counted
    return probe_later(advance(row, Event.RELAPSE, now, exceptions=count), now, alarm)


def probe_later(row: IncidentRow, now: datetime, alarm: Alarm) -> IncidentRow:
    """The next probe, after a pause that doubles."""
    pause = min(alarm.probe_seconds * 2 ** min(row.probes_count, 20), alarm.probe_seconds_max)
    later: IncidentRow = row.evolve(
        probes_count=row.probes_count + 1,
        probe_repair_id=None,
        relapses_count=0,
        due_at=now + timedelta(seconds=pause),
    )
    return later


def advance(row: IncidentRow, event: Event, at: datetime, **note: Any) -> IncidentRow:
    """One event of the table, recorded in the trail. Raises IllegalEvent."""
    following = TABLE.get((row.status, event))
    if following is None:
        raise IllegalEvent(f"{row.incident_id}: {row.status} has no {event}")
    entry = {"event": event.value, "to": following.value, "at": rfc3339(at), **note}
    moved: IncidentRow = row.evolve(status=following, trail=[*row.trail, entry][-TRAIL_MAX:])
    return moved


def told(row: IncidentRow) -> IncidentChanged:
    """The incident as operators see it."""
    radius = {name: len(values) for name, values in row.blast_radius.items()}
    shown = {f"{name}_named": values[:SHOWN_MAX] for name, values in row.blast_radius.items()}
    return IncidentChanged(
        incident_id=row.incident_id,
        tenant=row.tenant,
        status=row.status.value,
        cause=row.cause,
        owner=row.owner,
        exceptions_count=row.exceptions_count,
        exceptions=row.exceptions,
        blast_radius={**radius, **shown},
        held_count=row.held_count,
        first_at=row.first_at,
        last_at=row.last_at,
        opened_at=row.opened_at or row.first_at,
        closed_at=row.closed_at,
        next_probe_at=row.due_at if row.status is Status.OPEN else None,
        trail=row.trail,
        version=row.version,
    )
