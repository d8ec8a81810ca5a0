"""What is counted, and when: each object adds to counters at the minute in which its fate was decided.

An object counts in the window in which it came due, not in which it began: one that is late is bad at the moment its
time is up, and not when somebody ends it at last. Objects that began in the same minute are one cohort; a cohort is
counted as a whole, again whenever one of its objects changed or when time alone decides about one, so that counting
twice is no different from counting once. Operations, cases and exceptions are counted, never attempts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from trueup_common.contracts.shape import record
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    ExceptionKind,
    InstanceStatus,
    OperationState,
)
from trueup_gateway.core.counters import SPENT, Parts

REVISION: Final = 2
"""Of these rules; a higher one has everything counted anew."""

MINUTE: Final = timedelta(minutes=1)
OWNER_GRACE: Final = timedelta(minutes=1)
"""How long the news that something has an owner may take."""
OWNER_RECHECK: Final = timedelta(minutes=1)


class Subject(StrEnum):
    """What cohorts are made of."""

    OPERATION = "operation"
    CASE = "case"
    EXCEPTION = "exception"


VERIFIED_BY: Final = frozenset({"observed_healthy", "operation_success", "operation_resolved", "undone"})
"""How an exception ends that was repaired, and seen to be."""

SETTLED_BY: Final = VERIFIED_BY | {
    "operation_retry_pending",
    "operation_failed",
    "operation_cancelled",
    "operation_running",
}
"""How a doubt ends: it is known now what happened."""

DOUBTS: Final = frozenset({ExceptionKind.UNKNOWN_OUTCOME.value, ExceptionKind.STALE_RUNNING.value})

KNOWN_OUTCOME: Final = frozenset(
    {
        InstanceStatus.CLOSED.value,
        InstanceStatus.COMPENSATED.value,
        InstanceStatus.CANCELLED.value,
        InstanceStatus.RESOLVED.value,
    }
)
"""Ends of a case after which nobody has to ask what it left in the world."""

UNDOING_FAILED: Final = frozenset(
    {
        OperationState.FAILED.value,
        OperationState.CONFLICT.value,
        OperationState.NEEDS_REVIEW.value,
        OperationState.DEAD_LETTERED.value,
    }
)

_TERMINAL: Final = frozenset(status.value for status in INSTANCE_TERMINAL)


@record
class Bounds:
    """The times that the service levels speak of."""

    terminal: timedelta = timedelta(minutes=15)
    orphan: timedelta = timedelta(hours=24)
    sla: timedelta = timedelta(hours=1)
    """Of an exception that does not say what its first deadline was."""

    @property
    def revision(self) -> str:
        """Counters of another revision mean something else."""
        return f"{REVISION}/{self.terminal.total_seconds():g}/{self.orphan.total_seconds():g}"


@record
class OperationsAlike:
    """Operations of a cohort that count alike. `ended_at` is a minute; `owned` is asked only of what needs an owner."""

    state: str
    undoing: bool
    ended_at: datetime | None
    in_time: bool | None
    owned: bool | None
    count: int


@record
class CasesAlike:
    """Cases of a cohort that count alike. `judged_at` is the minute of their end or of their deadline, the earlier."""

    status: str
    high_risk: bool
    judged_at: datetime
    count: int
    spent: Mapping[str, float] = field(default_factory=dict)
    """What they have spent together, by word (`contracts.spending`)."""


@record
class ExceptionsAlike:
    """Exceptions of a cohort that count alike. Times are minutes."""

    kind: str
    resolution: str | None
    closed_at: datetime | None
    first_deadline_at: datetime | None
    kept: bool | None
    """True where it ended before its first deadline."""
    owned: bool
    count: int
    seconds: float
    """From the first second to the end, summed."""
    persons: int
    """How many cases need a person because of them."""


@record
class Counted:
    """What a cohort came to, and when it must be looked at again although nothing of it changed."""

    parts: Parts
    due_at: datetime | None


class _Tally:
    def __init__(self, now: datetime) -> None:
        self.now = now
        self.parts: Parts = {}
        self.due_at: datetime | None = None

    def add(self, at: datetime, counter: str, value: float) -> None:
        """Count something at a minute; what lies ahead makes the cohort due then."""
        if at > self.now:
            self.again(at)
        elif value:
            counts = self.parts.setdefault(minute_text(at), {})
            counts[counter] = counts.get(counter, 0) + value

    def again(self, at: datetime) -> None:
        """Look again then."""
        self.due_at = at if self.due_at is None else min(self.due_at, at)

    def counted(self) -> Counted:
        return Counted(self.parts, self.due_at)


def minute_of(at: datetime) -> datetime:
    """The minute that an instant lies in."""
    return at.replace(second=0, microsecond=0)


def minute_text(at: datetime) -> str:
    """A minute as it stands in counters."""
    return at.isoformat()[:16]


def count_operations(
    began_at: datetime, groups: Iterable[OperationsAlike], *, now: datetime, bounds: Bounds
) -> Counted:
    """Count operations that began in one minute."""
    tally = _Tally(now)
    # The minute after the last of them may be late: until then nobody is.
    late_at = began_at + bounds.terminal + MINUTE
    for group in groups:
        ended = group.ended_at
        if ended is None or not group.in_time:
            tally.add(late_at, "operations_due", group.count)
        else:
            tally.add(ended, "operations_due", group.count)
            tally.add(ended, "operations_in_time", group.count)
        if ended is None:
            continue
        tally.add(ended, "operations_ended", group.count)
        if group.undoing:
            tally.add(ended, "undoings_ended", group.count)
        if group.undoing and group.state in UNDOING_FAILED:
            tally.add(ended, "undoings_failed", group.count)
            _owned(tally, "undoings_failed", ended, group)
        elif group.state == OperationState.DEAD_LETTERED:
            _owned(tally, "dead_letters", ended, group)
    return tally.counted()


def _owned(tally: _Tally, counter: str, ended: datetime, group: OperationsAlike) -> None:
    """What needs an owner is asked for it once the news had time to come, and while it has none, again and again."""
    due = ended + MINUTE + OWNER_GRACE
    tally.add(due, f"{counter}_due", group.count)
    if group.owned:
        tally.add(due, f"{counter}_owned", group.count)
    else:
        tally.again(max(due, tally.now + OWNER_RECHECK))


def count_cases(began_at: datetime, groups: Iterable[CasesAlike], *, now: datetime) -> Counted:
    """Count cases that began in one minute. A cancelled one is not due: nobody wants its result any more.

    What it spent is spent all the same, as of every other.
    """
    tally = _Tally(now)
    for group in groups:
        tally.add(began_at, "cases_begun", group.count)
        at = group.judged_at if group.status in _TERMINAL else group.judged_at + MINUTE
        for name, value in group.spent.items():
            tally.add(at, f"{SPENT}{name}", value)
        if group.status != InstanceStatus.CANCELLED:
            tally.add(at, "cases_due", group.count)
        if group.status == InstanceStatus.CLOSED:
            tally.add(at, "cases_converged", group.count)
        if group.high_risk:
            tally.add(at, "high_risk_due", group.count)
            if group.status in KNOWN_OUTCOME:
                tally.add(at, "high_risk_verified", group.count)
    return tally.counted()


def count_exceptions(
    opened_at: datetime, groups: Iterable[ExceptionsAlike], *, now: datetime, bounds: Bounds
) -> Counted:
    """Count exceptions that were opened in one minute."""
    tally = _Tally(now)
    for group in groups:
        tally.add(opened_at, f"opened.{group.kind}", group.count)
        tally.add(opened_at, "exceptions_opened", group.count)
        tally.add(opened_at, "interventions", group.persons)
        _judge_sla(tally, opened_at, group, bounds)
        if group.kind == ExceptionKind.STALE_RUNNING:
            _judge_orphans(tally, opened_at, group, bounds)
        if group.closed_at is not None:
            _count_end(tally, group.closed_at, group)
    return tally.counted()


def _count_end(tally: _Tally, at: datetime, group: ExceptionsAlike) -> None:
    if group.kind in DOUBTS:
        tally.add(at, "doubts_ended", group.count)
        if group.resolution in SETTLED_BY:
            tally.add(at, "doubts_settled", group.count)
        return
    tally.add(at, "repairs_ended", group.count)
    if group.resolution in VERIFIED_BY:
        tally.add(at, "repairs_verified", group.count)
        tally.add(at, "repair_seconds", group.seconds)


def _judge_sla(tally: _Tally, opened_at: datetime, group: ExceptionsAlike, bounds: Bounds) -> None:
    deadline = (group.first_deadline_at or opened_at + bounds.sla) + MINUTE
    if group.closed_at is not None and group.kept:
        tally.add(group.closed_at, "sla_due", group.count)
        tally.add(group.closed_at, "sla_kept", group.count)
    else:
        tally.add(deadline, "sla_due", group.count)


def _judge_orphans(tally: _Tally, opened_at: datetime, group: ExceptionsAlike, bounds: Bounds) -> None:
    limit = opened_at + bounds.orphan
    if group.closed_at is None or group.closed_at > limit:
        tally.add(limit + MINUTE, "orphans_due", group.count)
        return
    tally.add(group.closed_at, "orphans_due", group.count)
    tally.add(group.closed_at, "orphans_in_time", group.count)
    if group.resolution in SETTLED_BY:
        tally.add(group.closed_at, "orphans_recovered", group.count)
