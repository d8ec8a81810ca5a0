"""What the API shows of commands, cases and elements: the read model in its public form."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow, ObligationRow
from trueup_common.contracts.states import CompensationState, InstanceStatus, OperationState
from trueup_common.contracts.workflow import StepPhase, StepState
from trueup_gateway.core.view_records import CaseView, ElementView

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


def step_bodies(view: CaseView, operations: Sequence[JournalRow]) -> list[dict[str, Any]]:
    """The steps of a case in the document's order; a single command's are its operations."""
    if not view.instance.steps:
        return [step_body(row) for row in operations]
    by_id = {row.command_id: row for row in operations}
    return [_document_step(StepState.model_validate(item), by_id) for item in view.instance.steps]


def _document_step(step: StepState, operations: Mapping[str, JournalRow]) -> dict[str, Any]:
    """One step of a document: a command's state is its operation's, once there is one."""
    row = operations.get(step.command_id) if step.command_id is not None else None
    if row is not None:
        body = {**step_body(row), "id": step.id}
    else:
        body = {
            "id": step.id,
            "state": step.phase.value,
            "command_id": step.command_id,
            "command_type": step.command_type,
            "attempts": 0,
            "outcome": DONE if step.phase is StepPhase.DONE else None,
            "compensation_state": CompensationState.NONE.value,
        }
    moments = step.model_dump(mode="json", include={"started_at", "deadline_at", "wake_at", "ended_at"})
    return {
        **body,
        "kind": step.kind.value,
        "phase": step.phase.value,
        "ended_as": step.outcome.value if step.outcome is not None else None,
        "generation": step.generation,
        "approval_id": step.approval_id,
        "content_sha256": step.content_sha256,
        "reason": step.reason,
        **moments,
    }


def undo_bodies(operations: Sequence[JournalRow]) -> list[dict[str, Any]]:
    """The compensations of a case, each an operation of its own."""
    return [{**step_body(row), "compensates": row.compensates} for row in operations if row.compensates is not None]


def step_body(row: JournalRow) -> dict[str, Any]:
    """One operation as a step."""
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


def vector_bodies(
    view: CaseView, operations: Sequence[JournalRow], elements: Sequence[ElementView]
) -> list[dict[str, Any]]:
    """The state vector: what the reconciler told, and of newer operations, until it does, what their receipts say.

    So a case that has just ended shows what its last effect established, not what the effect before it did.
    """
    order = {row.command_id: row.dispatch_sequence for row in operations}
    newest: dict[tuple[str, str, str], tuple[int, dict[str, Any]]] = {}
    for row in sorted(operations, key=lambda row: row.dispatch_sequence):
        for body in receipt_elements(view, row):
            newest[row.target_system, body["resource"], body["element"]] = (row.dispatch_sequence, body)
    for element in elements:
        place = (element.system, element.resource, element.element)
        if place in newest and order.get(element.command_id, newest[place][0]) >= newest[place][0]:
            del newest[place]
    return [
        *(
            element_body(element)
            for element in elements
            if not element.retired and (element.system, element.resource, element.element) not in newest
        ),
        *(body for _, body in newest.values()),
    ]


def receipt_elements(view: CaseView, row: JournalRow) -> list[dict[str, Any]]:
    """What an operation established and nothing undid, as the journal has it; and what one that ended badly did not.

    The business object of an element is the receipt's `resource`, as every declaration names it.
    """
    undone = row.compensation_state is not CompensationState.NONE or row.compensates is not None
    if not row.desired_state or (undone and row.state is not OperationState.SUCCESS):
        return []
    if row.state in _ENDED_BADLY and view.status == InstanceStatus.HUMAN_TAKEOVER:
        return [_missing(row, name, desired) for name, desired in row.desired_state.items()]
    if row.state is not OperationState.SUCCESS or row.compensation_state is not CompensationState.NONE:
        return []
    owed = {(item["command_id"], item["element"]) for item in view.instance.owed}
    recorded, observed = row.recorded_state or {}, row.observed_state or {}
    resource = str((row.receipt or {}).get("resource") or row.target_resource)
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
            "resource": resource,
            "command_id": row.command_id,
            "reason": None,
            "next_visit_at": None,
            "version": row.external_version,
        }
        for name, desired in row.desired_state.items()
    ]


def _missing(row: JournalRow, element: str, desired: Any) -> dict[str, Any]:
    """What is desired and was not brought about, as far as anybody knows."""
    return {
        "element": element,
        "desired": desired,
        "recorded": None,
        "observed": None,
        "verdict": "UNKNOWN",
        "phase": "UNKNOWN",
        "observed_at": None,
        "source": "journal",
        "system": row.target_system,
        "resource": row.target_resource,
        "command_id": row.command_id,
        "reason": row.error_code,
        "next_visit_at": None,
        "version": None,
    }


def obligation_body(row: ObligationRow) -> dict[str, Any]:
    """One obligation of a case."""
    return row.model_dump(mode="json", exclude={"tenant", "version"})


_WAIT: Final = ("reason", "expects", "owner", "backup_owner", "deadline", "next_wake_at")


_ENDED_BADLY: Final = frozenset(
    {OperationState.FAILED, OperationState.CONFLICT, OperationState.DEAD_LETTERED, OperationState.NEEDS_REVIEW}
)

_HOLDS_THE_CASE: Final = frozenset({"unknown_outcome", "stale_running", "needs_review"})
"""Exceptions that an open case waits for; beside any other it goes on, forwards or backwards."""


def wait_body(view: CaseView, operations: Sequence[JournalRow]) -> dict[str, Any] | None:
    """What an open case waits for and who owns the wait; None where it is at work or over."""
    if view.closed_at is None and view.instance.wait is not None:
        return {**dict.fromkeys(_WAIT), **view.instance.wait}
    taken_over = view.status == InstanceStatus.HUMAN_TAKEOVER
    owing = next(
        (item for item in view.obligations if item.status == "open" and (taken_over or item.kind in _HOLDS_THE_CASE)),
        None,
    )
    sleeping = next((row for row in operations if row.state is OperationState.RETRY_PENDING), None)
    if view.closed_at is not None:
        return None
    if owing is not None:
        reason, expects = owing.kind, "person" if taken_over else "settlement"
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
                "direction",
                "turned",
                "cancel",
                "paused",
                "purpose",
                "source_version",
                "start_key",
            )
        },
        "object": {"type": instance["object_type"], "id": instance["object_id"]},
        "steps": step_bodies(view, ordered),
        "compensations": undo_bodies(ordered),
        "wait": wait_body(view, ordered),
        "vector": vector_bodies(view, ordered, elements),
        "owed": instance["owed"],
        "obligations": [obligation_body(row) for row in view.obligations],
        "cost": {
            "attempts": sum(row.attempt_count for row in ordered),
            "effects": sum(row.attempt_count > 0 for row in ordered),
            "transitions": instance["history_seq"],
        },
    }
