"""What should be true, what is true, are they the same: one element's desired value against its observations.

Only an observation makes an element healthy, only a difference seen after the consistency window is drift, and UNKNOWN
is neither: it keeps open what is open.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.compare import phase_of, same
from trueup_common.contracts.events import Established, EstablishedElement
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import ObligationRow
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ExceptionKind, FailureClass, Phase, ProbeVerdict
from trueup_reconciler.core.element import ElementRow, Turn, object_key, turn
from trueup_reconciler.core.visit import next_visit

_TURNS: Final = {
    Phase.HEALTHY: (Turn.OBSERVED, Turn.EQUAL),
    Phase.UNKNOWN: (Turn.OBSERVED, Turn.UNDECIDED),
    Phase.CONVERGING: (Turn.OBSERVED, Turn.CONVERGING),
    Phase.DRIFT: (Turn.OBSERVED, Turn.DIFFERENT, Turn.CLASSIFY, Turn.NEEDS_PERSON),
}


@dataclass(frozen=True, slots=True)
class Care:
    """Who owns drift and by when it must be dealt with."""

    owner: str = "operators"
    sla_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Paid:
    """A verification that is no longer owed: the element holds, or a newer operation took it over."""

    command_id: str
    workflow_id: str
    element: str
    resource: str
    phase: Phase
    superseded_by: str | None = None
    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """What one message did to one element."""

    row: ElementRow
    changed: bool = True
    paid: tuple[Paid, ...] = ()
    opened: ObligationRow | None = None
    closed: tuple[str, str] | None = None
    """(obligation_id, resolution_type) of a drift that is over."""
    closed_for: ElementRow | None = None
    """The row that the closed drift was about."""
    displaced: ElementRow | None = None
    """The row of the older operation, whose case no longer owns this element."""


def element_of(event: Established, item: EstablishedElement, traceparent: str | None) -> ElementRow:
    """A row for one established element, not yet looked at."""
    return ElementRow(
        object_key=object_key(event.tenant, event.system, item.resource),
        element=item.element,
        tenant=event.tenant,
        system=event.system,
        resource=item.resource,
        command_id=event.command_id,
        workflow_id=event.workflow_id,
        saga_id=event.saga_id,
        command_type=event.command_type,
        declaration_sha256=event.declaration_sha256,
        origin={
            "step_id": event.step_id,
            "decision_id": event.decision_id,
            "capability_id": event.capability_id,
            "payload_sha256": event.payload_sha256,
            "external_status": event.external_status,
            "attempt_count": event.attempt_count,
            "trace_id": event.trace_id,
        },
        revision=event.revision,
        sequence=event.sequence,
        desired=item.desired,
        recorded=item.recorded,
        normaliser=item.normaliser,
        window_seconds=item.window_seconds,
        probe=item.probe.model_dump(mode="json"),
        established_at=event.established_at,
        window_until=event.established_at + timedelta(seconds=item.window_seconds),
        state_version=0,
        traceparent=traceparent,
        object_type=event.object_type,
        object_id=event.object_id,
    )


def establish(
    row: ElementRow | None,
    event: Established,
    item: EstablishedElement,
    *,
    now: datetime,
    traceparent: str | None = None,
) -> Turned:
    """Take up what an operation established. An older operation never replaces a newer one, whichever comes first."""
    fresh = element_of(event, item, traceparent)
    if row is not None and fresh.rank == row.rank:
        return Turned(row, changed=False)
    if row is not None and fresh.rank < row.rank:
        paid = () if item.verified else (superseded(fresh, Phase.UNKNOWN, row.command_id),)
        return Turned(row, changed=False, paid=paid)
    base = fresh
    overtaken: tuple[Paid, ...] = ()
    closed = None
    if row is not None:
        if row.owed:
            overtaken = (superseded(row, row.phase, fresh.command_id),)
        if row.obligation_id is not None:
            closed = (row.obligation_id, "superseded")
        base = turn(row, Turn.ESTABLISHED)
        base = fresh.evolve(
            stage=base.stage,
            state_version=row.state_version,
            visits_count=row.visits_count,
            drifts_count=row.drifts_count,
        )
    base = base.evolve(next_visit_at=now)
    seen = item.observation
    if item.verified and seen is not None and _judge(base, seen, within_window=True)[0] is Phase.HEALTHY:
        # The orchestrator compared with the same function in the commit of the receipt, so nothing is owed to it.
        base = observe(base.evolve(owed=False), seen, now=now, care=Care()).row
    return Turned(base, paid=overtaken, closed=closed, closed_for=row if closed else None, displaced=row)


def observe(row: ElementRow, seen: Observation, *, now: datetime, care: Care) -> Turned:
    """Compare one observation with the desired value."""
    asked_at = row.visit_asked_at or row.established_at
    phase, reason = _judge(row, seen, within_window=asked_at < row.window_until)
    known = phase is not Phase.UNKNOWN
    steady = phase is row.phase and row.verdict is not None
    same_count = row.same_count + 1 if steady else 0
    looked = turn(row, *_TURNS[phase]).evolve(
        phase=phase,
        verdict=(seen.verdict if known else ProbeVerdict.UNKNOWN).value,
        observed=seen.value if known else row.observed,
        observed_at=seen.observed_at if known else row.observed_at,
        source=seen.source if known else row.source,
        observed_version=seen.version if known else row.observed_version,
        etag=seen.etag if known else row.etag,
        reason=reason,
        same_count=same_count,
        unknown_count=0 if known else row.unknown_count + 1,
        unanswered_count=0,
        visit_id=None,
        visit_asked_at=None,
        next_visit_at=next_visit(
            phase,
            same_count=same_count,
            unknown_count=row.unknown_count,
            now=now,
            window_until=row.window_until,
        ),
    )
    if phase is Phase.HEALTHY:
        return _healthy(row, looked, seen, now)
    if phase is Phase.DRIFT and row.obligation_id is None:
        return _drifted(looked, seen, now, care)
    return Turned(looked)


def close(obligation: ObligationRow, resolution: str, now: datetime) -> ObligationRow:
    """An obligation that is no longer open."""
    closed: ObligationRow = obligation.evolve(
        status="closed", closed_at=now, resolution_type=resolution, version=obligation.version + 1
    )
    return closed


def _judge(row: ElementRow, seen: Observation, *, within_window: bool) -> tuple[Phase, str | None]:
    if seen.verdict is ProbeVerdict.MISSING and not seen.proof_of_access:
        return Phase.UNKNOWN, "missing_without_proof_of_access"
    if seen.verdict is ProbeVerdict.UNKNOWN:
        return Phase.UNKNOWN, seen.reason or "no_answer"
    equal = seen.verdict is ProbeVerdict.CONFIRMED and same(row.normaliser, row.desired, seen.value)
    phase = phase_of(seen.verdict, equal=equal, within_window=within_window)
    if phase is Phase.HEALTHY:
        return phase, None
    return phase, seen.reason or ("missing" if seen.verdict is ProbeVerdict.MISSING else "different")


def _healthy(before: ElementRow, looked: ElementRow, seen: Observation, now: datetime) -> Turned:
    paid: tuple[Paid, ...] = ()
    if before.owed:
        paid = (
            Paid(
                command_id=looked.command_id,
                workflow_id=looked.workflow_id,
                element=looked.element,
                resource=looked.resource,
                phase=Phase.HEALTHY,
                observation=seen,
            ),
        )
    over = (before.obligation_id, "observed_healthy") if before.obligation_id is not None else None
    healthy = looked.evolve(owed=False, healthy_at=now, drifted_at=None, obligation_id=None)
    return Turned(healthy, paid=paid, closed=over, closed_for=before if over else None)


def _drifted(looked: ElementRow, seen: Observation, now: datetime, care: Care) -> Turned:
    number = looked.drifts_count + 1
    obligation_id = derived_id("obl", looked.object_key, looked.element, looked.command_id, number)
    drifted = looked.evolve(drifts_count=number, obligation_id=obligation_id, drifted_at=now)
    opened = ObligationRow(
        obligation_id=obligation_id,
        tenant=looked.tenant,
        workflow_id=looked.workflow_id,
        saga_id=looked.saga_id,
        command_id=looked.command_id,
        kind=ExceptionKind.STATE_DRIFT.value,
        failure_class=_failure(seen).value,
        owner=care.owner,
        opened_at=now,
        deadline_at=now + timedelta(seconds=care.sla_seconds),
        envelope=_envelope(drifted, seen, now),
    )
    return Turned(drifted, opened=opened)


def _failure(seen: Observation) -> FailureClass:
    return FailureClass.RESOURCE_MISSING if seen.verdict is ProbeVerdict.MISSING else FailureClass.STATE_DRIFT


def _envelope(row: ElementRow, seen: Observation, now: datetime) -> dict[str, Any]:
    at = now.isoformat()
    return {
        "command_id": row.command_id,
        "workflow_id": row.workflow_id,
        "saga_id": row.saga_id,
        "failed_step": row.origin.get("step_id"),
        "failure_class": _failure(seen).value,
        "failure_code": "drifted",
        "failure_reason": f"{row.element} of {row.system}:{row.resource} is {row.reason}",
        "first_failed_at": at,
        "last_failed_at": at,
        "attempt_count": row.origin.get("attempt_count"),
        "last_external_status": row.origin.get("external_status"),
        "payload_reference": row.origin.get("payload_sha256"),
        "decision_id": row.origin.get("decision_id"),
        "capability_id": row.origin.get("capability_id"),
        "recommended_repair": "REPAIR",
        "human_review_required": True,
        "element": row.element,
        "desired": row.desired,
        "observed": row.observed,
        "last_known_good_at": row.healthy_at.isoformat() if row.healthy_at is not None else None,
    }


def superseded(row: ElementRow, phase: Phase, by: str) -> Paid:
    """What is no longer owed because a newer operation took the element over."""
    return Paid(
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        element=row.element,
        resource=row.resource,
        phase=phase,
        superseded_by=by,
    )
