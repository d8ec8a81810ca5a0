"""Views: from events of other services to rows that are read. Whole state with a version; older ones are ignored."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from trueup_common.contracts.events import CaseChanged, ElementChanged, ExceptionChanged
from trueup_common.contracts.journal import InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_gateway.core.acceptance import is_free
from trueup_gateway.core.records import CaseView, CommandView, ElementView, ExceptionView, HistoryView

FreedKey = tuple[str, str, str]
"""(tenant, idempotency key, command) of an edge that gives up its business identity."""

DONE: Final = "done"
NOT_DONE: Final = "not_done"
UNKNOWN: Final = "unknown"

OUTCOMES: Final[dict[OperationState, str | None]] = {
    OperationState.SUCCESS: DONE,
    OperationState.FAILED: NOT_DONE,
    OperationState.CANCELLED: NOT_DONE,
    OperationState.OUTCOME_UNKNOWN: UNKNOWN,
    OperationState.ORPHAN_SUSPECTED: UNKNOWN,
    OperationState.RECONCILING: UNKNOWN,
    OperationState.NEEDS_REVIEW: UNKNOWN,
}
"""What is known of an operation's effect; states that are not listed are still on their way or belong to a person."""


def command_views(changes: Iterable[CaseChanged]) -> list[CommandView]:
    """The newest view of each operation in a batch of events."""
    newest: dict[str, CommandView] = {}
    for change in changes:
        for row in change.operations:
            known = newest.get(row.command_id)
            if known is None or known.state_version < row.state_version:
                newest[row.command_id] = _command_view(row, change.instance.subject)
    return list(newest.values())


def _command_view(row: JournalRow, subject: str) -> CommandView:
    return CommandView.trusted(
        command_id=row.command_id,
        tenant=row.tenant,
        subject=subject,
        workflow_id=row.workflow_id,
        command_type=row.command_type,
        system=row.target_system,
        state=row.state.value,
        state_version=row.state_version,
        created_at=row.created_at,
        row=row,
    )


def case_views(changes: Iterable[CaseChanged]) -> list[CaseView]:
    """The newest view of each case in a batch of events."""
    newest: dict[str, CaseView] = {}
    for change in changes:
        instance = change.instance
        known = newest.get(instance.workflow_id)
        if known is None or known.state_version < instance.state_version:
            newest[instance.workflow_id] = case_view(instance, change.obligations)
    return list(newest.values())


def case_view(instance: InstanceRow, obligations: Sequence[ObligationRow]) -> CaseView:
    """The view of a case as it stands."""
    return CaseView.trusted(
        workflow_id=instance.workflow_id,
        tenant=instance.tenant,
        subject=instance.subject,
        definition=instance.definition,
        object_type=instance.object_type,
        object_id=instance.object_id,
        status=instance.status.value,
        state_version=instance.state_version,
        owner=next((item.owner for item in obligations if item.status == "open"), None),
        deadline_at=instance.deadline_at,
        created_at=instance.created_at,
        closed_at=instance.closed_at,
        instance=instance,
        obligations=list(obligations),
    )


def history_views(changes: Iterable[CaseChanged]) -> list[HistoryView]:
    """All history events of a batch, each once."""
    found = {
        (event.workflow_id, event.seq): HistoryView.trusted(
            workflow_id=event.workflow_id, tenant=event.tenant, seq=event.seq, event=event
        )
        for change in changes
        for event in change.history
    }
    return list(found.values())


def freed(changes: Iterable[CaseChanged]) -> list[FreedKey]:
    """Keys whose business identity is free again: the orchestrator, which owns it, let go of it."""
    return sorted(
        {
            (row.tenant, row.idempotency_key, row.command_id)
            for change in changes
            for row in change.operations
            if row.identity is None and row.state_version > 0 and is_free(row.state, row.compensation_state)
        }
    )


def element_views(changes: Iterable[ElementChanged]) -> list[ElementView]:
    """The newest view of each element in a batch of events."""
    newest: dict[tuple[str, str, str, str], ElementView] = {}
    for change in changes:
        key = (change.workflow_id, change.system, change.resource, change.element)
        known = newest.get(key)
        if known is None or known.version < change.version:
            newest[key] = ElementView.model_validate(change.model_dump())
    return list(newest.values())


def exception_views(changes: Iterable[ExceptionChanged]) -> list[ExceptionView]:
    """The newest view of each exception in a batch of events."""
    newest: dict[str, ExceptionView] = {}
    for change in changes:
        known = newest.get(change.exception_id)
        if known is None or known.version < change.version:
            newest[change.exception_id] = ExceptionView.model_validate(change.model_dump())
    return list(newest.values())


_HIDDEN: Final = ("traceparent", "reply_to", "payload", "receipt", "attempts")
_COLUMNS: Final[dict[str, Any]] = {
    name: None if field.is_required() else field.get_default(call_default_factory=True)
    for name, field in JournalRow.model_fields.items()
    if name not in _HIDDEN
}
_ATTEMPT: Final = ("attempt_id", "fence", "state", "started_at", "ended_at", "error_code", "external_status")


def command_body(row: dict[str, Any]) -> dict[str, Any]:
    """The answer about one command: its journal row with receipt, observation and attempts in their public form.

    Every column is there, also where a message left out what is empty.
    """
    body = {name: row.get(name, empty) for name, empty in _COLUMNS.items()}
    body["payload"] = row.get("payload")
    body["receipt"] = row.get("receipt")
    body["observation"] = row.get("observed_state")
    body["attempts"] = [
        {**attempt, **{name: attempt.get(name) for name in _ATTEMPT}} for attempt in row.get("attempts") or ()
    ]
    return body


def step_body(row: JournalRow) -> dict[str, Any]:
    """One step of a case."""
    return {
        "id": row.step_id,
        "state": row.state.value,
        "command_id": row.command_id,
        "command_type": row.command_type,
        "attempts": row.attempt_count,
        "outcome": OUTCOMES.get(row.state),
        "compensation_state": row.compensation_state.value,
    }


def element_body(view: ElementView) -> dict[str, Any]:
    """One entry of the state vector."""
    dumped = view.model_dump(mode="json")
    body = {
        name: dumped[name]
        for name in (
            "element",
            "desired",
            "recorded",
            "observed",
            "verdict",
            "phase",
            "observed_at",
            "source",
            "system",
            "resource",
            "command_id",
            "reason",
            "next_visit_at",
        )
    }
    body["version"] = dumped["observed_version"]
    return body


def receipt_elements(view: CaseView, row: JournalRow, elements: Sequence[ElementView]) -> list[dict[str, Any]]:
    """Elements of a succeeded operation that the reconciler has not told of yet, as the journal has them."""
    told = {(element.command_id, element.element) for element in elements}
    owed = {(item["command_id"], item["element"]) for item in view.instance.owed}
    if row.state is not OperationState.SUCCESS or not row.desired_state:
        return []
    recorded, observed = row.recorded_state or {}, row.observed_state or {}
    return [
        {
            "element": name,
            "desired": desired,
            "recorded": recorded.get(name),
            "observed": observed.get(name),
            "verdict": "CONFIRMED" if name in observed else "UNKNOWN",
            "phase": "CONVERGING" if (row.command_id, name) in owed else "HEALTHY",
            "observed_at": row.completed_at.isoformat().replace("+00:00", "Z") if row.completed_at else None,
            "source": "receipt",
            "system": row.target_system,
            "resource": row.target_resource,
            "command_id": row.command_id,
            "reason": None,
            "next_visit_at": None,
            "version": row.external_version,
        }
        for name, desired in row.desired_state.items()
        if (row.command_id, name) not in told
    ]


def obligation_body(row: ObligationRow) -> dict[str, Any]:
    """One obligation of a case."""
    return row.model_dump(mode="json", exclude={"tenant", "version"})


def wait_body(view: CaseView, operations: Sequence[JournalRow]) -> dict[str, Any] | None:
    """What an open case waits for and who owns the wait; None where it is at work or over."""
    owing = next((item for item in view.obligations if item.status == "open"), None)
    sleeping = next((row for row in operations if row.state is OperationState.RETRY_PENDING), None)
    if view.closed_at is not None:
        return None
    if owing is not None:
        reason, expects = owing.kind, "person" if view.status == InstanceStatus.HUMAN_TAKEOVER else "settlement"
        deadline, owner = owing.deadline_at, owing.owner
    elif sleeping is not None:
        reason, expects, deadline, owner = "retry", "timer", sleeping.deadline_at, "trueup"
    elif view.status == InstanceStatus.VERIFYING:
        reason, expects, deadline, owner = "verification", "observation", view.deadline_at, "trueup"
    else:
        return None
    wakes = [row.wake_at for row in operations if row.wake_at is not None]
    return {
        "reason": reason,
        "expects": expects,
        "owner": owner,
        "backup_owner": None,
        "deadline": deadline.isoformat().replace("+00:00", "Z"),
        "next_wake_at": min(wakes).isoformat().replace("+00:00", "Z") if wakes else None,
    }


def workflow_body(view: CaseView, operations: Sequence[JournalRow], elements: Sequence[ElementView]) -> dict[str, Any]:
    """The answer about one case."""
    instance = view.instance.model_dump(mode="json")
    ordered = sorted(operations, key=lambda row: (row.created_at, row.step_id, row.generation))
    return {
        **{
            name: instance[name]
            for name in (
                "workflow_id",
                "saga_id",
                "definition",
                "version",
                "sha256",
                "tenant",
                "status",
                "state_version",
                "pivot",
                "stage",
                "parent_id",
                "revision",
                "created_at",
                "deadline_at",
                "closed_at",
                "resolution_type",
                "correlation_id",
                "trace_id",
                "subject",
            )
        },
        "object": {"type": instance["object_type"], "id": instance["object_id"]},
        "steps": [step_body(row) for row in ordered],
        "wait": wait_body(view, ordered),
        "vector": [
            *(element_body(element) for element in elements),
            *(body for row in ordered for body in receipt_elements(view, row, elements)),
        ],
        "owed": instance["owed"],
        "obligations": [obligation_body(row) for row in view.obligations],
        "cost": {"attempts": sum(row.attempt_count for row in ordered), "transitions": instance["history_seq"]},
    }
