"""The handover package: all that a person needs who takes a case from automation, in one piece."""

from collections.abc import Sequence
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.operators import maybe_sent
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_common.contracts.workflow import Direction
from trueup_gateway.core.case_body import OUTCOMES
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.view_records import CaseView, ExceptionView

_OPEN_QUESTIONS: Final = {
    OperationState.NEEDS_REVIEW: "did this effect happen? settle it with evidence from the target",
    OperationState.CONFLICT: "somebody else holds the target: which of the two is right?",
    OperationState.DEAD_LETTERED: "why does the target not take this? look, then redrive or settle",
    OperationState.FAILED: "correct what failed, redrive it, or go on without it?",
    OperationState.OUTCOME_UNKNOWN: "the reconciler is still looking whether this happened",
    OperationState.ORPHAN_SUSPECTED: "the reconciler is still looking whether this happened",
    OperationState.RECONCILING: "the reconciler is still looking whether this happened",
}
"""What has to be answered about an operation in this state."""


_APPROVAL: Final = {
    "approval_id",
    "step_id",
    "status",
    "content_sha256",
    "reviewer",
    "decision_id",
    "decided_at",
}


def effect_of(row: JournalRow) -> dict[str, Any]:
    """One effect that was caused, or may have been."""
    return {
        "command_id": row.command_id,
        "step_id": row.step_id,
        "command_type": row.command_type,
        "target": {"system": row.target_system, "resource": row.target_resource},
        "state": row.state.value,
        "outcome": OUTCOMES.get(row.state),
        "external_resource_id": row.external_resource_id,
        "external_version": row.external_version,
        "receipt": row.receipt,
        "compensates": row.compensates,
        "compensation_state": row.compensation_state.value,
        "decision_id": row.decision_id,
        "attempts": row.attempt_count,
    }


def questions_of(rows: Sequence[JournalRow], exceptions: Sequence[ExceptionView]) -> list[dict[str, Any]]:
    """What is open: of each operation that nobody can go on from, and of the case as a whole."""
    asked: list[dict[str, Any]] = [
        {"about": row.command_id, "step_id": row.step_id, "question": question, "error_code": row.error_code}
        for row in rows
        if (question := _OPEN_QUESTIONS.get(row.state)) is not None
    ]
    asked += [
        {
            "about": view.exception_id,
            "step_id": view.envelope.get("failed_step"),
            "question": view.envelope.get("recommended_repair"),
            "error_code": view.envelope.get("failure_code"),
        }
        for view in exceptions
        if view.command_id is None
    ]
    return asked


def package(  # noqa: PLR0917 - the parts of one package
    view: CaseView,
    body: dict[str, Any],
    rows: Sequence[JournalRow],
    exceptions: Sequence[ExceptionView],
    approvals: Sequence[ApprovalRow],
    events: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Everything: where automation stands, what was caused, what is open, on what it rests, and what may be done."""
    direction = Direction(view.instance.direction)
    return {
        "workflow_id": view.workflow_id,
        "automation": {
            "frozen": direction in (Direction.PERSON, Direction.STOP) or view.status == InstanceStatus.HUMAN_TAKEOVER,
            "direction": direction.value,
            "turned": view.instance.turned,
            "in_flight": [row.command_id for row in rows if row.lease_expires_at is not None],
        },
        "case": body,
        "effects": [effect_of(row) for row in rows if row.state is OperationState.SUCCESS or maybe_sent(row)],
        "open_questions": questions_of(rows, exceptions),
        "exceptions": [item.model_dump(mode="json", exclude={"tenant", "allowed_actions"}) for item in exceptions],
        "evidence": {
            "decisions": sorted({row.decision_id for row in rows}),
            "approvals": [item.model_dump(mode="json", include=_APPROVAL) for item in approvals],
            "observations": body["vector"],
            "history_head": view.instance.history_hash,
        },
        "history": list(events),
        "allowed_actions": body["allowed_actions"],
    }
