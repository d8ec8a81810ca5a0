"""Failure envelopes: all that one needs to know of an exception without looking elsewhere (requirement Q2)."""

from dataclasses import dataclass
from typing import Any, Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import ExceptionKind, FailureClass
from trueup_orchestrator.core.fold import Fold

RECOMMENDED: Final[dict[ExceptionKind, str]] = {
    ExceptionKind.STALE_RUNNING: "wait for the reconciler: it asks the target whether the effect happened",
    ExceptionKind.UNKNOWN_OUTCOME: "wait for the reconciler: it asks the target whether the effect happened",
    ExceptionKind.FAILED: (
        "remove the cause and redrive it, or submit a corrected command that names this one in `supersedes`; "
        "nothing happened in the target"
    ),
    ExceptionKind.CONFLICT: "compare with what holds the target now, then decide; nothing was overwritten",
    ExceptionKind.NEEDS_REVIEW: "look into the target and settle as EXISTS, ABSENT or CLOSE",
    ExceptionKind.COMPENSATION_FAILED: "undo it by hand or correct what keeps it from being undone, then settle it",
    ExceptionKind.DEAD_LETTER: "observe the target, then redrive as a new repair command; never replay as it was",
}

RECOMMENDED_FOR_CASE: Final = "look at the case's history and the step named here, then decide how it goes on"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is owed."""

    code: str | None
    reason: str | None
    failure: FailureClass


def case_envelope(fold: Fold, kind: ExceptionKind, cause: Cause, now: str) -> dict[str, Any]:
    """The failure envelope of a case as a whole."""
    instance = fold.instance
    return {
        "command_id": None,
        "workflow_id": instance.workflow_id,
        "saga_id": instance.saga_id,
        "failed_step": (instance.turned or {}).get("step_id"),
        "failure_class": cause.failure.value,
        "failure_code": cause.code or kind.value,
        "failure_reason": cause.reason or RECOMMENDED_FOR_CASE,
        "first_failed_at": now,
        "last_failed_at": now,
        "attempt_count": 0,
        "last_external_status": None,
        "payload_reference": f"sha256:{instance.input_sha256}" if instance.input_sha256 else None,
        "decision_id": instance.mandate.get("decision_id"),
        "capability_id": instance.mandate.get("capability_id"),
        "recommended_repair": RECOMMENDED_FOR_CASE,
        "human_review_required": True,
    }


def envelope(row: JournalRow, kind: ExceptionKind, cause: Cause, now: str) -> dict[str, Any]:
    """The failure envelope: all that one needs to know without looking elsewhere (requirement Q2)."""
    ended = [item["ended_at"] for item in row.attempts if item["ended_at"] and item["error_code"]]
    return {
        "command_id": row.command_id,
        "workflow_id": row.workflow_id,
        "saga_id": row.saga_id,
        "failed_step": row.step_id,
        "failure_class": cause.failure.value,
        "failure_code": cause.code or kind.value,
        "failure_reason": cause.reason or _buried(row) or RECOMMENDED[kind],
        "first_failed_at": ended[0] if ended else now,
        "last_failed_at": ended[-1] if ended else now,
        "attempt_count": row.attempt_count,
        "last_external_status": row.last_external_status,
        "payload_reference": f"sha256:{row.payload_sha256}",
        "decision_id": row.decision_id,
        "capability_id": row.capability_id,
        "recommended_repair": RECOMMENDED[kind],
        "human_review_required": row.human_review_required or kind not in _SETTLE_THEMSELVES,
    }


def _buried(row: JournalRow) -> str | None:
    """Why a dead letter is one, and what the last attempt met: the budget alone says nothing of the trouble."""
    if row.dead_letter_reason is None:
        return None
    met = next((item["error_code"] for item in reversed(row.attempts) if item.get("error_code")), None)
    status = f", the target answered {row.last_external_status}" if row.last_external_status else ""
    return f"{row.dead_letter_reason}: the last attempt met {met}{status}" if met else row.dead_letter_reason


_SETTLE_THEMSELVES: Final = frozenset({ExceptionKind.STALE_RUNNING, ExceptionKind.UNKNOWN_OUTCOME})
