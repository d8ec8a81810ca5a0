"""Obligations: what a case owes follows from its state, with owner and deadline, in the commit that causes it.

`settle` compares what the state demands with what is open: the missing is opened, the obsolete is closed. No decision
opens or closes an obligation by itself, so none can be forgotten.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.failures import failure_class
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import JournalRow, ObligationRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import (
    ErrorClass,
    ExceptionKind,
    FailureClass,
    InstanceStatus,
    OperationState,
)
from trueup_common.contracts.topology import event_subject
from trueup_orchestrator.core.attempts import barred, duplicated, stalled
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.operation import PERSONS

EFFECTS_DUPLICATED: Final = "effects_duplicated"
EFFECT_AFTER_FAILURE: Final = "effect_after_failure"
LANDED_AFTER_CANCEL: Final = "landed_after_cancel"
UNVERIFIED: Final = "unverified"

KIND_OF_STATE: Final[dict[OperationState, ExceptionKind]] = {
    OperationState.ORPHAN_SUSPECTED: ExceptionKind.STALE_RUNNING,
    OperationState.OUTCOME_UNKNOWN: ExceptionKind.UNKNOWN_OUTCOME,
    OperationState.RECONCILING: ExceptionKind.UNKNOWN_OUTCOME,
    OperationState.FAILED: ExceptionKind.FAILED,
    OperationState.CONFLICT: ExceptionKind.CONFLICT,
    OperationState.NEEDS_REVIEW: ExceptionKind.NEEDS_REVIEW,
    OperationState.DEAD_LETTERED: ExceptionKind.DEAD_LETTER,
}
"""States that are exceptions, and the kind that operators see."""

RECOMMENDED: Final[dict[ExceptionKind, str]] = {
    ExceptionKind.STALE_RUNNING: "wait for the reconciler: it asks the target whether the effect happened",
    ExceptionKind.UNKNOWN_OUTCOME: "wait for the reconciler: it asks the target whether the effect happened",
    ExceptionKind.FAILED: "correct what failed and submit a new command; nothing happened in the target",
    ExceptionKind.CONFLICT: "compare with what holds the target now, then decide; nothing was overwritten",
    ExceptionKind.NEEDS_REVIEW: "look into the target and settle as EXISTS, ABSENT or CLOSE",
    ExceptionKind.DEAD_LETTER: "observe the target, then redrive as a new repair command; never replay as it was",
}

_ALERTS: Final[dict[str, str]] = {
    EFFECTS_DUPLICATED: "attempts of one operation landed as different objects",
    EFFECT_AFTER_FAILURE: "an attempt is reported to have landed although the operation ended without effect",
    LANDED_AFTER_CANCEL: "the effect landed although a cancel was requested",
    UNVERIFIED: "what was established is not yet observed to hold",
}


_HEALTHY: Final = frozenset(
    {
        OperationState.QUEUED,
        OperationState.DISPATCHING,
        OperationState.RUNNING,
        OperationState.RETRY_PENDING,
    }
)


def may_owe(row: JournalRow) -> bool:
    """False where no obligation can be open, so that none needs to be loaded."""
    return row.state not in _HEALTHY or stalled(row)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is owed."""

    code: str | None
    reason: str | None
    failure: FailureClass


def alert_of(row: JournalRow) -> str | None:
    """What a person must look at although the state alone does not say so."""
    if duplicated(row):
        return EFFECTS_DUPLICATED
    if row.state in PERSONS | {OperationState.CANCELLED} and barred(row):
        return EFFECT_AFTER_FAILURE
    return LANDED_AFTER_CANCEL if row.state is OperationState.SUCCESS and row.cancel_requested else None


def _demanded(fold: Fold) -> dict[ExceptionKind, Cause]:
    """The kinds that the present state demands, with their causes."""
    row = fold.operation
    demanded: dict[ExceptionKind, Cause] = {}
    kind = ExceptionKind.STALE_RUNNING if stalled(row) else KIND_OF_STATE.get(row.state)
    if kind is not None:
        open_kinds = {item.kind for item in fold.obligations.values()}
        if row.state is OperationState.RECONCILING and ExceptionKind.STALE_RUNNING in open_kinds:
            kind = ExceptionKind.STALE_RUNNING  # taken up by the reconciler, the same trouble
        uncertain = kind in (ExceptionKind.STALE_RUNNING, ExceptionKind.UNKNOWN_OUTCOME)
        failure = FailureClass.TIMEOUT_UNKNOWN if uncertain else failure_class(row.error_class, row.error_code)
        demanded[kind] = Cause(row.error_code, row.error_detail, failure)
    alert = alert_of(row)
    if alert is None and fold.instance.status is InstanceStatus.VERIFYING:
        known = any(item.envelope.get("failure_code") == UNVERIFIED for item in fold.obligations.values())
        alert = UNVERIFIED if known or fold.unverified else None
    if alert is not None and ExceptionKind.NEEDS_REVIEW not in demanded:
        demanded[ExceptionKind.NEEDS_REVIEW] = Cause(alert, _ALERTS[alert], failure_class(ErrorClass.UNKNOWN, alert))
    return demanded


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
        "failure_reason": cause.reason or row.dead_letter_reason or RECOMMENDED[kind],
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


_SETTLE_THEMSELVES: Final = frozenset({ExceptionKind.STALE_RUNNING, ExceptionKind.UNKNOWN_OUTCOME})


def settle(fold: Fold) -> tuple[list[ObligationRow], list[ObligationRow]]:
    """Open what is demanded and close what is not; answers (opened, closed) and reports both as exceptions."""
    now = fold.moment.business
    demanded = _demanded(fold)
    row = fold.operation
    closed: list[ObligationRow] = []
    for item in list(fold.obligations.values()):
        if demanded.pop(ExceptionKind(item.kind), None) is None:
            resolution = f"operation_{row.state.value.lower()}"
            done = item.evolve(status="closed", closed_at=now, resolution_type=resolution, version=item.version + 1)
            closed.append(done)
            del fold.obligations[item.obligation_id]
    opened: list[ObligationRow] = []
    for kind, cause in demanded.items():
        obligation = ObligationRow(
            obligation_id=derived_id("obl", row.command_id, kind.value, fold.version),
            tenant=row.tenant,
            workflow_id=row.workflow_id,
            saga_id=row.saga_id,
            command_id=row.command_id,
            kind=kind.value,
            failure_class=cause.failure.value,
            owner=fold.terms.exception_owner,
            opened_at=now,
            deadline_at=now + timedelta(seconds=fold.terms.exception_sla_seconds),
            envelope=envelope(row, kind, cause, rfc3339(now)),
        )
        opened.append(obligation)
        fold.obligations[obligation.obligation_id] = obligation
    for obligation in (*opened, *closed):
        _report(fold, obligation)
    return opened, closed


def _report(fold: Fold, obligation: ObligationRow) -> None:
    row = fold.operation
    fold.send(
        ExceptionReported(
            reported_by=SOURCE,
            obligation=obligation,
            command_type=row.command_type,
            target_system=row.target_system,
            target_resource=row.target_resource,
            trace_id=row.trace_id,
        ),
        message_id=f"{obligation.obligation_id}:{obligation.version}",
        subject=event_subject(SOURCE, "exception", row.tenant),
    )
