"""What the API shows of commands, cases and elements: the read model in its public form."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow, ObligationRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import CompensationState, InstanceStatus, OperationState
from trueup_common.contracts.workflow import StepPhase, StepState
from trueup_gateway.core.cost import cost_body
from trueup_gateway.core.vector import vector_bodies
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


def obligation_body(row: ObligationRow) -> dict[str, Any]:
    """One obligation of a case."""
    return row.model_dump(mode="json", exclude={"tenant", "version"})


_WAIT: Final = ("reason", "expects", "owner", "backup_owner", "deadline", "next_wake_at")


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
    queued = next((row for row in operations if row.state is OperationState.QUEUED), None)
    if view.closed_at is not None:
        return None
    if owing is not None:
        reason, expects = owing.kind, "person" if taken_over else "settlement"
        deadline, owner = owing.deadline_at, owing.owner
    elif sleeping is not None:
        reason, expects, deadline, owner = "retry", "timer", sleeping.deadline_at, "trueup"
    elif queued is not None:
        reason, expects = _queued_for(queued)
        deadline, owner = queued.deadline_at, "trueup"
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
        "deadline": rfc3339(deadline),
        "next_wake_at": rfc3339(min(wakes)) if wakes else None,
    }


def _queued_for(row: JournalRow) -> tuple[str, str]:
    """Why a queued operation is not on its way: its grant is minted, it is held back, or its turn has not come."""
    if row.proposed:
        return "grant", "grant"
    if row.next_retry_at is not None:
        return row.error_code or "held_back", "release" if row.error_code == "frozen" else "timer"
    return "window", "window"


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
        "cost": cost_body(view.instance, ordered),
    }
