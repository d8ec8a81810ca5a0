"""From an exception to its repair: what is repaired, by which playbook, when, and after which tries a person gets it.

Tries are counted by what is repaired, not by exception: work that dies again is another exception and the same trouble.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import ExceptionReported, MessageQuarantined
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.operators import UNDOING
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import ExceptionKind, RiskLevel
from trueup_repair_planner.core.lifecycle import ExceptionRow
from trueup_repair_planner.core.playbook import Action, Playbook, Playbooks, facts_of
from trueup_repair_planner.core.repair import RepairRow, Status, Step, advance

DELAY_SECONDS_MAX: Final = 86400.0
PLANNER: Final = "service:repair-planner"
BUDGET_SPENT: Final = "budget_spent"

_TRIED: Final = frozenset({Status.FAILED, Status.ESCALATED})


@dataclass(frozen=True, slots=True)
class Planned:
    """A repair, or that none is called for; `playbook` is the one that was taken."""

    playbook: Playbook
    repair: RepairRow | None


def subject_key(kind: str, named: Mapping[str, Any], obligation_id: str) -> str:
    """What a repair of this exception is about: one element, one operation, one case, or the exception alone."""
    if kind == ExceptionKind.STATE_DRIFT and named.get("element"):
        return f"{named.get('target_system')}:{named.get('target_resource')}:{named['element']}"
    return str(named.get("command_id") or named.get("workflow_id") or obligation_id)


def subject_of(event: ExceptionReported | MessageQuarantined) -> str:
    """The same, from a report."""
    if isinstance(event, MessageQuarantined):
        return event.quarantine_id
    item = event.obligation
    named = {
        "target_system": event.target_system,
        "target_resource": event.target_resource,
        **item.envelope,
        "command_id": item.command_id,
        "workflow_id": item.workflow_id,
    }
    return subject_key(item.kind, named, item.obligation_id)


def subject_of_row(row: ExceptionRow) -> str:
    """The same, from an exception."""
    named = {**row.envelope, "command_id": row.command_id, "workflow_id": row.workflow_id}
    return subject_key(row.kind, named, row.obligation_id)


def tried(history: Iterable[RepairRow]) -> int:
    """How many repairs were tried here since one last held."""
    count = 0
    for item in sorted(history, key=lambda row: (row.created_at, row.number)):
        if item.status is Status.DONE:
            count = 0
        elif item.status in _TRIED:
            count += 1
    return count


def plan(row: ExceptionRow, history: Sequence[RepairRow], playbooks: Playbooks, *, now: datetime) -> Planned:
    """The next repair of an open exception; `history` are all repairs of the same subject."""
    count = tried(history)
    facts = facts_of(row.kind, row.failure_class, row.envelope, count, undoing=left_to_case(row))
    playbook = playbooks.choose(facts)
    if playbook.action is Action.NONE:
        return Planned(playbook, None)
    repair = _row(row, playbook, number=count + 1, now=now)
    if playbook.action is Action.ESCALATE:
        repair = advance(repair, Step.ESCALATE, now, PLANNER, {"reason": playbook.name})
    elif playbook.approval == "auto" and count >= playbook.attempts_max:
        note = {"reason": BUDGET_SPENT, "tried": count}
        repair = advance(repair, Step.ESCALATE, now, PLANNER, note, error_code=BUDGET_SPENT)
    return Planned(playbook, repair)


def asked(
    row: ExceptionRow, history: Sequence[RepairRow], playbooks: Playbooks, *, action: str, actor: str, now: datetime
) -> RepairRow:
    """A repair that a person asks for, whatever was tried before: only its own approval lets it begin."""
    count = tried(history)
    playbook = playbooks.choose(facts_of(row.kind, row.failure_class, row.envelope, count))
    repair = _row(row, playbook, number=count + 1, now=now)
    planned: RepairRow = repair.evolve(repair_action=action, planned_by=actor, approval_required=True, due_at=None)
    return planned


def _row(row: ExceptionRow, playbook: Playbook, *, number: int, now: datetime) -> RepairRow:
    subject, named = subject_of_row(row), row.envelope
    request = _request(row) if row.kind == ExceptionKind.STATE_DRIFT else None
    automatic = playbook.approval == "auto"
    delay = min(playbook.delay_seconds * 2 ** min(number - 1, 20), DELAY_SECONDS_MAX)
    due_at = None if waits(row) else max(now + timedelta(seconds=delay), _not_before(named) or now)
    return RepairRow(
        repair_id=derived_id("rep", row.exception_id, row.repairs_count + 1),
        tenant=row.tenant,
        exception_id=row.exception_id,
        subject_key=subject,
        number=number,
        source_command=row.command_id,
        source_workflow=row.workflow_id,
        source_saga=row.saga_id,
        drift=_drift(row) if row.kind == ExceptionKind.STATE_DRIFT else None,
        request=request,
        root_cause=f"{row.failure_class}: {named.get('failure_reason') or named.get('failure_code')}",
        repair_action=playbook.action.value,
        risk_level=RiskLevel(playbook.risk),
        required_capability=_required(row, playbook, request),
        approval_required=not automatic,
        verification_plan=playbook.verification,
        verify_seconds=playbook.verify_seconds,
        rollback_or_compensation=playbook.rollback,
        explanation=playbook.explanation,
        playbook=playbook.name,
        playbook_version=playbook.version,
        owner=row.owner,
        planned_by=PLANNER,
        evidence=evidence_of(row),
        system=named.get("target_system"),
        due_at=due_at if automatic else None,
        created_at=now,
        trail=[{"step": "plan", "to": Status.PLANNED.value, "at": rfc3339(now), "actor": PLANNER}],
        trace_id=row.trace_id,
        traceparent=row.traceparent,
    )


def _drift(row: ExceptionRow) -> dict[str, Any]:
    named = row.envelope
    members = ("element", "desired", "observed", "observed_at", "route", "repairs_count", "waits_for")
    return {
        "system": named.get("target_system"),
        "resource": named.get("target_resource"),
        **{name: named.get(name) for name in members},
    }


def _request(row: ExceptionRow) -> dict[str, Any] | None:
    """The repair command that the declaration of what drifted gives: the missing element only."""
    offered = row.envelope.get("repair")
    if not isinstance(offered, Mapping):
        return None
    command_type = str(offered["command_type"])
    return {
        "command_type": command_type,
        "system": command_type.partition(".")[0],
        "resource": str(offered["resource"]),
        "payload": offered.get("payload", {}),
        "supersedes": offered.get("supersedes") or row.command_id,
    }


def _not_before(named: Mapping[str, Any]) -> datetime | None:
    """When the reconciler lets the next repair of an element begin, where it says so."""
    told = named.get("repair_not_before")
    return datetime.fromisoformat(str(told)) if told else None


def routed(row: ExceptionRow) -> tuple[Any, ...]:
    """What a repair of drift was planned by: where this changes, it is planned anew."""
    named = row.envelope
    return (named.get("route"), named.get("repair"), named.get("repair_not_before"))


def left_to_case(row: ExceptionRow) -> bool:
    """True while a failure is left to its case, which undoes by its document what it caused.

    The case takes that back itself; a deadline that passes does, and a person who escalates.
    """
    return bool(row.envelope.get(UNDOING)) and row.escalations_count == 0


def waits(row: ExceptionRow) -> tuple[str, ...]:
    """The elements of the same business object that are brought right before this one: until then its repair waits."""
    return tuple(row.envelope.get("waits_for") or ())


def in_its_turn(repair: RepairRow, row: ExceptionRow, now: datetime) -> RepairRow:
    """A planned repair whose turn has come, because what was to be repaired first is; or that has to wait after all."""
    due_at = None if waits(row) else max(_not_before(row.envelope) or now, now)
    moved: RepairRow = repair.evolve(due_at=due_at, drift=_drift(row))
    return moved


def _required(row: ExceptionRow, playbook: Playbook, request: Mapping[str, Any] | None) -> dict[str, Any]:
    if request is not None:
        return {name: request[name] for name in ("command_type", "system", "resource")}
    return {"operation": playbook.action.value, "target": {"kind": "exception", "id": row.exception_id}}


def evidence_of(row: ExceptionRow) -> list[dict[str, Any]]:
    """What a decision about this exception rests on: the exception itself and, of drift, the observation."""
    named = row.envelope
    found: list[dict[str, Any]] = [
        {
            "kind": "exception",
            "ref": row.exception_id,
            "sha256": digest({"exception_id": row.exception_id, "source_version": row.source_version}),
            "observed_at": named.get("last_failed_at") or rfc3339(row.opened_at),
        }
    ]
    if row.kind == ExceptionKind.STATE_DRIFT:
        seen = {name: named.get(name) for name in ("element", "desired", "observed", "observed_at")}
        observation = {
            "kind": "observation",
            "ref": str(named.get("observation_id") or f"{row.exception_id}:{row.source_version}"),
            "sha256": digest(seen),
            "observed_at": named.get("observed_at") or named.get("last_failed_at"),
        }
        found.append({name: value for name, value in observation.items() if value is not None})
    return found
