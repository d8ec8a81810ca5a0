"""One lifecycle for every exception: found → classified → assigned → repaired → verified → closed.

Nothing leaves it silently: every step stands in the trail with time and actor. From its first second an exception has
an owner and a deadline; a deadline that passes moves it to the escalation owner.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from trueup_common.contracts.events import ExceptionReported, MessageQuarantined
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.shape import ForwardContract, Instant, rfc3339
from trueup_common.contracts.states import ExceptionKind, FailureClass
from trueup_repair_planner.core.classify import class_of, envelope_of, envelope_of_message
from trueup_repair_planner.core.resolutions import DONE, GOES_ON, PENDING, UNDONE, mended

TRAIL_MAX: Final = 100
ESCALATION_DELAY_MAX: Final = timedelta(days=7)


class Stage(StrEnum):
    """Stages of an exception."""

    FOUND = "found"
    CLASSIFIED = "classified"
    ASSIGNED = "assigned"
    REPAIRED = "repaired"
    VERIFIED = "verified"
    CLOSED = "closed"


class Turn(StrEnum):
    """What moves an exception."""

    CLASSIFY = "classify"
    ASSIGN = "assign"
    ESCALATE = "escalate"
    REPAIR = "repair"
    REFUTE = "refute"
    VERIFY = "verify"
    CLOSE = "close"
    WITHDRAW = "withdraw"
    REOPEN = "reopen"


TABLE: Final[dict[tuple[Stage, Turn], Stage]] = {
    (Stage.FOUND, Turn.CLASSIFY): Stage.CLASSIFIED,
    (Stage.CLASSIFIED, Turn.ASSIGN): Stage.ASSIGNED,
    (Stage.ASSIGNED, Turn.CLASSIFY): Stage.ASSIGNED,
    (Stage.ASSIGNED, Turn.ASSIGN): Stage.ASSIGNED,
    (Stage.ASSIGNED, Turn.ESCALATE): Stage.ASSIGNED,
    (Stage.ASSIGNED, Turn.REPAIR): Stage.REPAIRED,
    (Stage.ASSIGNED, Turn.WITHDRAW): Stage.CLOSED,
    (Stage.REPAIRED, Turn.ASSIGN): Stage.REPAIRED,
    (Stage.REPAIRED, Turn.ESCALATE): Stage.REPAIRED,
    (Stage.REPAIRED, Turn.REFUTE): Stage.ASSIGNED,
    (Stage.REPAIRED, Turn.VERIFY): Stage.VERIFIED,
    (Stage.REPAIRED, Turn.WITHDRAW): Stage.CLOSED,
    (Stage.VERIFIED, Turn.CLOSE): Stage.CLOSED,
    (Stage.CLOSED, Turn.REOPEN): Stage.FOUND,
}
"""Stages by turns; what is not here cannot happen. Only a verified repair or a withdrawn cause closes."""


class IllegalTurn(Exception):
    """A turn that the table does not have: a fault of the program, not of the world."""


@dataclass(frozen=True, slots=True)
class Duty:
    """Who owns exceptions that nobody named an owner for, and who takes over when a deadline passes."""

    owner: str = "operators"
    escalation_owner: str = "duty-manager"
    sla_seconds: float = 3600.0


class ExceptionRow(ForwardContract):
    """One exception as the planner holds it. `source_version` is the newest report that was taken in."""

    exception_id: str
    tenant: str
    obligation_id: str
    source_version: int
    reported_by: str
    kind: str
    status: str = "open"
    lifecycle: Stage = Stage.FOUND
    failure_class: str
    owner: str
    deadline_at: Instant
    first_deadline_at: Instant
    escalations_count: int = 0
    opened_at: Instant
    closed_at: Instant | None = None
    resolution_type: str | None = None
    resolved_by: str | None = None
    workflow_id: str | None = None
    saga_id: str | None = None
    command_id: str | None = None
    envelope: dict[str, Any]
    trail: list[dict[str, Any]] = Field(default_factory=list)
    repair_id: str | None = None
    repair_status: str | None = None
    repairs_count: int = 0
    """How many repairs were planned for it: each has an id of its own."""
    incident_id: str | None = None
    left_as: str | None = None
    """How its obligation ended where that says nothing yet: a repair was sent and is still to be verified."""
    trace_id: str | None = None
    traceparent: str | None = None
    version: int = 0


def exception_id(obligation_id: str) -> str:
    """The exception of an obligation: the same for every report of it."""
    return derived_id("exc", obligation_id)


def report(
    row: ExceptionRow | None, event: ExceptionReported, *, now: datetime, duty: Duty, traceparent: str | None = None
) -> ExceptionRow:
    """Take in a report. An older report than the newest one changes nothing; reports may come in any order."""
    obligation = event.obligation
    if row is not None and obligation.version <= row.source_version:
        return row
    failure = class_of(event)
    facts = {
        "source_version": obligation.version,
        "failure_class": failure.value,
        "envelope": envelope_of(event, failure),
    }
    if row is None:
        owner = obligation.owner or duty.owner
        row = _found(
            ExceptionRow(
                exception_id=exception_id(obligation.obligation_id),
                tenant=obligation.tenant,
                obligation_id=obligation.obligation_id,
                reported_by=event.reported_by,
                kind=ExceptionKind(obligation.kind).value,
                owner=owner,
                deadline_at=obligation.deadline_at,
                first_deadline_at=obligation.deadline_at,
                opened_at=obligation.opened_at,
                workflow_id=obligation.workflow_id or None,
                saga_id=obligation.saga_id or None,
                command_id=obligation.command_id,
                trace_id=event.trace_id,
                traceparent=traceparent,
                **facts,
            ),
            now,
        )
    else:
        row = _again(row, row.evolve(**facts), obligation, now, duty)
    return _resolved(row, obligation, event.reported_by, now) if obligation.status == "closed" else row


def quarantined(
    row: ExceptionRow | None, event: MessageQuarantined, *, now: datetime, duty: Duty, traceparent: str | None = None
) -> ExceptionRow:
    """Adopt a message that nobody could process."""
    if row is not None:
        return row
    deadline = event.at + timedelta(seconds=duty.sla_seconds)
    found = ExceptionRow(
        exception_id=exception_id(event.quarantine_id),
        tenant=event.tenant,
        obligation_id=event.quarantine_id,
        source_version=1,
        reported_by=event.service,
        kind=ExceptionKind.QUARANTINED_MESSAGE.value,
        failure_class=FailureClass.SCHEMA_ERROR.value,
        owner=duty.owner,
        deadline_at=deadline,
        first_deadline_at=deadline,
        opened_at=event.at,
        workflow_id=event.workflow_id,
        envelope=envelope_of_message(event),
        traceparent=traceparent,
    )
    return _found(found, now)


def overdue(row: ExceptionRow, *, now: datetime, duty: Duty) -> ExceptionRow:
    """The deadline passed: the escalation owner takes over, with a new deadline that doubles each time."""
    if row.status != "open" or row.deadline_at > now:
        return row
    return escalate(row, now=now, duty=duty, actor="deadline", note={"missed": rfc3339(row.deadline_at)})


def escalate(row: ExceptionRow, *, now: datetime, duty: Duty, actor: str, note: dict[str, Any]) -> ExceptionRow:
    """The escalation owner takes over."""
    extension = min(timedelta(seconds=duty.sla_seconds) * 2 ** min(row.escalations_count, 20), ESCALATION_DELAY_MAX)
    escalated: ExceptionRow = row.evolve(
        owner=duty.escalation_owner,
        deadline_at=now + extension,
        escalations_count=row.escalations_count + 1,
    )
    told = {"from": row.owner, "to_owner": duty.escalation_owner, **note}
    return step(escalated, Turn.ESCALATE, now, actor, told)


def assign(row: ExceptionRow, owner: str, actor: str, now: datetime) -> ExceptionRow:
    """Another owner. The deadline stays: it belongs to the trouble, not to who has it."""
    return step(row.evolve(owner=owner), Turn.ASSIGN, now, actor, {"from": row.owner, "owner": owner})


def step(row: ExceptionRow, move: Turn, at: datetime, actor: str, note: dict[str, Any] | None = None) -> ExceptionRow:
    """One turn of the table, recorded in the trail. Raises IllegalTurn."""
    following = TABLE.get((row.lifecycle, move))
    if following is None:
        raise IllegalTurn(f"{row.exception_id}: {row.lifecycle} has no {move}")
    entry = {"turn": move.value, "to": following.value, "at": rfc3339(at), "actor": actor, **(note or {})}
    moved: ExceptionRow = row.evolve(lifecycle=following, trail=[*row.trail, entry][-TRAIL_MAX:])
    return moved


def _found(row: ExceptionRow, now: datetime) -> ExceptionRow:
    entry = {"turn": "find", "to": Stage.FOUND.value, "at": rfc3339(row.opened_at), "actor": row.reported_by}
    found = row.evolve(trail=[*row.trail, entry])
    classified = step(found, Turn.CLASSIFY, now, "planner", {"failure_class": row.failure_class})
    return step(classified, Turn.ASSIGN, now, "planner", {"owner": row.owner})


def _again(
    before: ExceptionRow, row: ExceptionRow, obligation: ObligationRow, now: datetime, duty: Duty
) -> ExceptionRow:
    """A newer report of a known exception: classified anew where that changed; open again, it starts over."""
    if row.lifecycle is Stage.ASSIGNED and row.failure_class != before.failure_class:
        return step(row, Turn.CLASSIFY, now, "planner", {"failure_class": row.failure_class})
    if row.lifecycle is not Stage.CLOSED or obligation.status == "closed":
        return row
    reopened = step(row, Turn.REOPEN, now, "planner").evolve(
        status="open",
        closed_at=None,
        resolution_type=None,
        resolved_by=None,
        left_as=None,
        owner=obligation.owner or duty.owner,
        deadline_at=obligation.deadline_at,
        first_deadline_at=obligation.deadline_at,
    )
    return _found(reopened, now)


def _resolved(row: ExceptionRow, obligation: ObligationRow, reporter: str, now: datetime) -> ExceptionRow:
    if row.lifecycle is Stage.CLOSED:
        return row
    resolution = obligation.resolution_type or "resolved"
    actor = str(obligation.envelope.get("resolved_by") or _repairer(row) or reporter)
    if row.lifecycle is Stage.REPAIRED and row.repair_status == DONE and resolution in GOES_ON:
        resolution = UNDONE  # word of the end came before word of the beginning
    if row.lifecycle is Stage.REPAIRED and row.repair_status in PENDING and resolution in GOES_ON:
        # A redrive was accepted: it is no dead letter any more, and not yet what was wanted. The repair will tell.
        left: ExceptionRow = row.evolve(left_as=resolution)
        return left
    return finish(row, resolution, actor, reporter, now, at=obligation.closed_at or now)


def _repairer(row: ExceptionRow) -> str | None:
    """Who sent the repair that stands: an exception that ends with it was resolved by them, whoever observed it."""
    if row.lifecycle is not Stage.REPAIRED:
        return None
    return next((entry["actor"] for entry in reversed(row.trail) if entry["turn"] == Turn.REPAIR.value), None)


def finish(
    row: ExceptionRow, resolution: str, actor: str, verifier: str, now: datetime, *, at: datetime | None = None
) -> ExceptionRow:
    """Close an exception by what is known: verified, where what was wanted was seen to be true, else withdrawn."""
    if mended(row.kind, resolution):
        if row.lifecycle is not Stage.REPAIRED:
            row = step(row, Turn.REPAIR, now, actor, {"resolution_type": resolution})
        row = step(row, Turn.VERIFY, now, verifier)
        row = step(row, Turn.CLOSE, now, verifier, {"resolution_type": resolution})
    else:
        # Superseded, cancelled, or now another exception: nobody may read this as a repair that was verified.
        row = step(row, Turn.WITHDRAW, now, actor, {"resolution_type": resolution})
    closed: ExceptionRow = row.evolve(
        status="closed", closed_at=at or now, resolution_type=resolution, resolved_by=actor, left_as=None
    )
    return closed
