"""What should be true, what is true, are they the same: one element's desired value against its observations.

Only an observation makes an element healthy, only a difference seen after the consistency window is drift, and UNKNOWN
is neither: it keeps open what is open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from trueup_common.contracts.compare import phase_of, same
from trueup_common.contracts.events import Established, EstablishedElement
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import Phase, ProbeVerdict
from trueup_reconciler.core import report
from trueup_reconciler.core.budget import IN_FLIGHT, TURN, Budget, Way, counted, kind_of, route
from trueup_reconciler.core.element import ElementRow, Stage, Turn, object_key, turn
from trueup_reconciler.core.ignoring import IgnoreRule, accepted
from trueup_reconciler.core.turned import Care, Turned, given_up, held, superseded
from trueup_reconciler.core.visit import next_visit

_TURNS: Final = {
    Phase.HEALTHY: (Turn.OBSERVED, Turn.EQUAL),
    Phase.UNKNOWN: (Turn.OBSERVED, Turn.UNDECIDED),
    Phase.CONVERGING: (Turn.OBSERVED, Turn.CONVERGING),
    Phase.DRIFT: (Turn.OBSERVED, Turn.DIFFERENT, Turn.CLASSIFY),
}


@dataclass(frozen=True, slots=True)
class Terms:
    """What is decided outside: who owns drift, how often it is repaired by itself, and what is accepted for a while."""

    care: Care = field(default_factory=Care)
    budget: Budget = field(default_factory=Budget)
    rules: Sequence[IgnoreRule] = ()


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
        repair=item.repair.model_dump(mode="json") if item.repair is not None else None,
        downstream_of=list(item.downstream_of),
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
    if row is not None and (fresh.rank == row.rank or event.command_id == row.repaired_by):
        return Turned(row, changed=False)
    if row is not None and _repairs(event, item, row):
        return mended(row, event, item, now)
    if row is not None and fresh.rank < row.rank:
        paid = () if item.verified else (superseded(fresh, Phase.UNKNOWN, row.command_id),)
        return Turned(row, changed=False, paid=paid)
    base = fresh
    if row is not None:
        base = fresh.evolve(
            stage=turn(row, Turn.ESTABLISHED).stage,
            state_version=row.state_version,
            visits_count=row.visits_count,
            drifts_count=row.drifts_count,
            looks=row.looks,
        )
    base = base.evolve(next_visit_at=now)
    taken, seen = Turned(base), item.observation
    if item.verified and seen is not None and judge(base, seen, within_window=True)[0] is Phase.HEALTHY:
        # The orchestrator compared with the same function in the commit of the receipt, so nothing is owed to it.
        taken = observe(base.evolve(owed=False), seen, now=now, terms=Terms())
    closed = (row.obligation_id, "superseded") if row is not None and row.obligation_id is not None else None
    return replace(
        taken,
        paid=given_up(row, fresh.command_id) if row is not None else (),
        closed=closed,
        closed_for=row if closed else None,
        displaced=row,
    )


def _repairs(event: Established, item: EstablishedElement, row: ElementRow) -> bool:
    """True where an operation took the place of the one whose element this is, or of its repair, to the same end.

    Its effect may have been seen before word of it comes: then the drift is over already, and it is a repair still.
    """
    if row.retired_by is not None or event.supersedes is None:
        return False
    if event.supersedes not in (row.command_id, row.repaired_by):
        return False
    return row.obligation_id is not None or same(row.normaliser, row.desired, item.desired)


def mended(row: ElementRow, event: Established, item: EstablishedElement, now: datetime) -> Turned:
    """A repair of this element succeeded. It stays the operation's that established it, and its drift stays open.

    Whatever was observed or asked before the repair says nothing of what it did; its own read-back does.
    """
    base = turn(row, Turn.REPAIR_SUCCEEDED).evolve(
        desired=item.desired,
        recorded=item.recorded,
        normaliser=item.normaliser,
        window_seconds=item.window_seconds,
        window_until=event.established_at + timedelta(seconds=item.window_seconds),
        probe=item.probe.model_dump(mode="json"),
        repair=item.repair.model_dump(mode="json") if item.repair is not None else row.repair,
        repaired_by=event.command_id,
        repaired_workflow_id=event.workflow_id,
        repair_owed=not item.verified,
        repairs_count=row.repairs_count + 1,
        tried_at=now,
        same_count=0,
        visit_id=None,
        visit_asked_at=None,
        next_visit_at=now,
    )
    displaced = given_up(row.evolve(owed=False), event.command_id)  # an earlier repair, still unverified
    seen = item.observation
    if item.verified and seen is not None and judge(base, seen, within_window=True)[0] is Phase.HEALTHY:
        looked = observe(base, seen, now=now, terms=Terms())
        return replace(looked, paid=displaced + looked.paid)
    return Turned(base.evolve(repair_owed=True), paid=displaced)


def observe(row: ElementRow, seen: Observation, *, now: datetime, terms: Terms, ahead: tuple[str, ...] = ()) -> Turned:
    """Compare one observation with the desired value. `ahead` are elements that are brought right before this one."""
    looked, asked = looked_at(row, seen, now), tuple(row.looks)
    if looked.phase is Phase.HEALTHY:
        return _healthy(row, looked, seen, now, asked)
    if looked.phase is Phase.DRIFT:
        rule = accepted(terms.rules, row, seen, now)
        if rule is not None:
            return _ignored(row, looked, rule, asked)
        return _drifted(row, looked, seen, now=now, terms=terms, asked=asked, ahead=ahead)
    return Turned(looked, looked=asked)


def looked_at(row: ElementRow, seen: Observation, now: datetime) -> ElementRow:
    """The row with what an observation says of it, and when it is looked at again; a difference is being classified."""
    asked_at = row.visit_asked_at or row.established_at
    phase, reason = judge(row, seen, within_window=asked_at < row.window_until)
    known = phase is not Phase.UNKNOWN
    steady = phase is row.phase and row.verdict is not None
    same_count = row.same_count + 1 if steady else 0
    looked: ElementRow = turn(row, *_TURNS[phase]).evolve(
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
        looks=[],
        awaited=row.awaited and phase is Phase.CONVERGING,
        next_visit_at=next_visit(
            phase,
            same_count=same_count,
            unknown_count=row.unknown_count,
            now=now,
            window_until=row.window_until,
        ),
    )
    return looked


def judge(row: ElementRow, seen: Observation, *, within_window: bool) -> tuple[Phase, str | None]:
    """The phase that an observation gives, and why it is not HEALTHY."""
    if seen.verdict is ProbeVerdict.MISSING and not seen.proof_of_access:
        return Phase.UNKNOWN, "missing_without_proof_of_access"
    if seen.verdict is ProbeVerdict.UNKNOWN:
        return Phase.UNKNOWN, seen.reason or "no_answer"
    equal = seen.verdict is ProbeVerdict.CONFIRMED and same(row.normaliser, row.desired, seen.value)
    phase = phase_of(seen.verdict, equal=equal, within_window=within_window)
    if phase is Phase.HEALTHY:
        return phase, None
    return phase, seen.reason or ("missing" if seen.verdict is ProbeVerdict.MISSING else "different")


def _healthy(
    before: ElementRow, looked: ElementRow, seen: Observation, now: datetime, asked: tuple[dict[str, str], ...]
) -> Turned:
    over = (before.obligation_id, "observed_healthy") if before.obligation_id is not None else None
    healthy = looked.evolve(
        owed=False,
        repair_owed=False,
        healthy_at=now,
        drifted_at=None,
        obligation_id=None,
        reported_sha256=None,
        waits_for=[],
    )
    return Turned(healthy, paid=held(before, seen), closed=over, closed_for=before if over else None, looked=asked)


def _ignored(before: ElementRow, looked: ElementRow, rule: IgnoreRule, asked: tuple[dict[str, str], ...]) -> Turned:
    """A difference that somebody accepts until the rule ends: nobody is called, and nothing is paid."""
    over = (before.obligation_id, "accepted") if before.obligation_id is not None else None
    row = turn(looked, Turn.ACCEPTED).evolve(
        reason=f"accepted by {rule.id} until {rfc3339(rule.until)}",
        obligation_id=None,
        reported_sha256=None,
        waits_for=[],
        next_visit_at=min(looked.next_visit_at or rule.until, rule.until),
    )
    return Turned(row, closed=over, closed_for=before if over else None, looked=asked)


def _drifted(
    before: ElementRow,
    looked: ElementRow,
    seen: Observation,
    *,
    now: datetime,
    terms: Terms,
    asked: tuple[dict[str, str], ...],
    ahead: tuple[str, ...],
) -> Turned:
    """Open a drift, or say what has become of the open one. `looked` is being classified."""
    if before.obligation_id is None or before.stage is Stage.VERIFY:
        looked = counted(looked, seen, now=now, budget=terms.budget)
    way = route(looked, kind_of(seen), now=now, budget=terms.budget)
    looked = turn(looked, TURN[way.way])
    if way.way is Way.ESCALATED:
        looked = looked.evolve(automatic=False, escalated_code=way.code)
    if before.obligation_id is not None and before.stage is not Stage.VERIFY and looked.repair_status in IN_FLIGHT:
        looked = turn(looked, Turn.REPAIR_PLANNED)
    looked = looked.evolve(waits_for=list(ahead))
    facts = report.of_observation(looked, seen, way)
    told = report.said(facts)
    if before.obligation_id is not None:
        again = (before.obligation_id, facts) if told != before.reported_sha256 else None
        return Turned(looked.evolve(reported_sha256=told), restated=again, looked=asked)
    drifted = looked.evolve(
        drifts_count=looked.drifts_count + 1,
        drifted_at=now,
        reported_sha256=told,
        repair_id=None,
        repair_status=None,
        repair_version=0,
    )
    obligation = report.opened(drifted, seen, facts, now=now, care=terms.care)
    return Turned(drifted.evolve(obligation_id=obligation.obligation_id), opened=obligation, looked=asked)
