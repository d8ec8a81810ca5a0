"""Obligations: what a case owes follows from its state, with owner and deadline, in the commit that causes it.

`settle` compares what the state demands with what is open: the missing is opened, the obsolete is closed. No decision
opens or closes an obligation by itself, so none can be forgotten.
"""

from datetime import timedelta
from typing import Any, Final

from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.failures import failure_class
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import JournalRow, ObligationRow
from trueup_common.contracts.operators import UNDOING, UNVERIFIED, is_unverified
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import (
    ErrorClass,
    ExceptionKind,
    FailureClass,
    InstanceStatus,
    OperationState,
)
from trueup_common.contracts.topology import event_subject
from trueup_common.contracts.workflow import Direction
from trueup_orchestrator.core.acts import in_hand
from trueup_orchestrator.core.attempts import barred, duplicated, stalled, worker_of
from trueup_orchestrator.core.envelopes import Cause, case_envelope, envelope
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.operation import PERSONS
from trueup_orchestrator.core.replacing import SUPERSEDED

EFFECTS_DUPLICATED: Final = "effects_duplicated"
EFFECT_AFTER_FAILURE: Final = "effect_after_failure"
LANDED_AFTER_CANCEL: Final = "landed_after_cancel"
RESOLVED: Final = "resolved"
"""Reason of a case that a person closed, saying what became of every effect."""

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

_ALERTS: Final[dict[str, str]] = {
    EFFECTS_DUPLICATED: "attempts of one operation landed, or may have landed, as different objects",
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
    return row.state not in _HEALTHY or stalled(row) or in_hand(row)


Owed = tuple[str | None, ExceptionKind]
"""(command id, or None for the case as a whole; kind)."""

CONSEQUENCES_SETTLED: Final = frozenset({InstanceStatus.COMPENSATED, InstanceStatus.CANCELLED})
"""A failed operation of such a case owes nothing any more: what the case had caused is undone."""

_OWNED_BY_PERSON: Final = frozenset({InstanceStatus.HUMAN_TAKEOVER, InstanceStatus.SAFE_STOPPED})

_SPEAKS_FOR_CASE: Final = frozenset(
    {
        ExceptionKind.CONFLICT,
        ExceptionKind.NEEDS_REVIEW,
        ExceptionKind.DEAD_LETTER,
        ExceptionKind.COMPENSATION_FAILED,
    }
)
"""Exceptions of an operation that already bring a person to the case."""


_IN_DOUBT: Final = (ExceptionKind.STALE_RUNNING, ExceptionKind.UNKNOWN_OUTCOME)
"""What the state of an operation says by itself, whoever acts on it."""
_ENDED_WITHOUT: Final = PERSONS | {OperationState.CANCELLED, OperationState.RESOLVED}


def alert_of(row: JournalRow, *, alone: bool = True) -> str | None:
    """What a person must look at although the state alone does not say so.

    `alone` says that the operation is a case of its own; of a workflow's, the case decides what a cancel that came too
    late means.
    """
    if row.resolution_type is not None:
        return None  # a person looked
    if duplicated(row):
        return EFFECTS_DUPLICATED
    if row.state in _ENDED_WITHOUT and barred(row):
        return EFFECT_AFTER_FAILURE
    return LANDED_AFTER_CANCEL if alone and row.state is OperationState.SUCCESS and row.cancel_requested else None


def replaced(fold: Fold, row: JournalRow) -> bool:
    """True for a failed operation of a step that began anew: the later one speaks for the step."""
    if row.state is not OperationState.FAILED or fold.workflow is None or barred(row):
        return False
    return any(other.supersedes == row.command_id for other in fold.operations.values())


def _kind_of(fold: Fold, row: JournalRow) -> ExceptionKind | None:
    """The kind of exception that an operation's state is, if any."""
    if replaced(fold, row):
        return None
    kind = ExceptionKind.STALE_RUNNING if stalled(row) else KIND_OF_STATE.get(row.state)
    if kind is None:
        return None
    if row.compensates is not None and row.state in PERSONS:
        return ExceptionKind.COMPENSATION_FAILED
    if row.state is OperationState.RECONCILING and any(
        item.kind == ExceptionKind.STALE_RUNNING and item.command_id == row.command_id
        for item in fold.obligations.values()
    ):
        return ExceptionKind.STALE_RUNNING  # taken up by the reconciler, the same trouble
    settled = fold.instance.status in CONSEQUENCES_SETTLED and row.state is OperationState.FAILED
    return None if settled and not barred(row) else kind


def _undone_by_case(fold: Fold, command_id: str | None, kind: str) -> bool:
    """True while a failure is left to its case, which gets on with taking back by its document what it caused."""
    undoing = fold.workflow is not None and fold.instance.status is InstanceStatus.COMPENSATING
    if not undoing or command_id is None or kind != ExceptionKind.FAILED:
        return False
    return not barred(fold.operations[command_id]) and _unverified(fold) is None


def _cause_of(row: JournalRow, kind: ExceptionKind) -> Cause:
    if kind in _IN_DOUBT:
        failure = FailureClass.TIMEOUT_UNKNOWN
    elif kind is ExceptionKind.COMPENSATION_FAILED:
        failure = FailureClass.COMPENSATION_FAILURE
    else:
        failure = failure_class(row.error_class, row.error_code)
    return Cause(row.error_code, row.error_detail, failure)


def _demanded(fold: Fold) -> dict[Owed, Cause]:
    """What the present state demands: for each operation and for the case as a whole."""
    demanded: dict[Owed, Cause] = {}
    for row in fold.operations.values():
        kept = _kept(fold, row) if in_hand(row) else {}
        if kept:
            demanded.update(kept)  # acted upon, it is not over: how the operation ends closes it
            continue
        kind = _kind_of(fold, row)
        if kind is not None:
            demanded[row.command_id, kind] = _cause_of(row, kind)
        alert = alert_of(row, alone=fold.workflow is None)
        if alert is None and fold.workflow is None:
            alert = _unverified(fold)
        if alert is not None and (row.command_id, ExceptionKind.NEEDS_REVIEW) not in demanded:
            cause = Cause(alert, _ALERTS[alert], failure_class(ErrorClass.UNKNOWN, alert))
            demanded[row.command_id, ExceptionKind.NEEDS_REVIEW] = cause
    if fold.workflow is not None:
        _of_case(fold, demanded)
    return demanded


def _kept(fold: Fold, row: JournalRow) -> dict[Owed, Cause]:
    return {
        (row.command_id, ExceptionKind(item.kind)): Cause(None, None, FailureClass.TIMEOUT_UNKNOWN)
        for item in fold.obligations.values()
        if item.command_id == row.command_id and item.kind not in _IN_DOUBT
    }


def _unverified(fold: Fold) -> str | None:
    if fold.instance.status not in (InstanceStatus.VERIFYING, InstanceStatus.COMPENSATING):
        return None
    return UNVERIFIED if fold.unverified or is_unverified(fold.obligations.values()) else None


def _of_case(fold: Fold, demanded: dict[Owed, Cause]) -> None:
    """What a workflow owes beside its operations: a person for what no operation stands for."""
    instance = fold.instance
    turned, code = instance.turned or {}, _unverified(fold)
    if code is not None:
        demanded[None, ExceptionKind.NEEDS_REVIEW] = Cause(code, _ALERTS[code], failure_class(ErrorClass.UNKNOWN, code))
    elif instance.status in _OWNED_BY_PERSON and turned.get("reason") != RESOLVED:
        away = instance.direction in (Direction.PERSON, Direction.STOP)
        if not (any(kind in _SPEAKS_FOR_CASE for _, kind in demanded) if away else demanded):
            reason = str(turned.get("reason") or fold.left_behind or instance.direction)
            demanded[None, ExceptionKind.NEEDS_REVIEW] = Cause(
                reason, turned.get("detail"), FailureClass.BUSINESS_RULE_ERROR
            )


def settle(fold: Fold) -> tuple[list[ObligationRow], list[ObligationRow]]:
    """Open what is demanded and close what is not; answers (opened, changed) and reports both as exceptions."""
    now = fold.moment.business
    demanded = _demanded(fold)
    changed: list[ObligationRow] = []
    for item in list(fold.obligations.values()):
        if demanded.pop((item.command_id, ExceptionKind(item.kind)), None) is None:
            by = fold.acted_by.get(item.command_id)
            done = item.evolve(
                status="closed",
                closed_at=now,
                resolution_type=_resolution(fold, item),
                version=item.version + 1,
                envelope={**item.envelope, "resolved_by": by} if by is not None else item.envelope,
            )
            changed.append(done)
            del fold.obligations[item.obligation_id]
        elif item.envelope.get(UNDOING) and not _undone_by_case(fold, item.command_id, item.kind):
            left = item.evolve(envelope={**item.envelope, UNDOING: False}, version=item.version + 1)
            changed.append(left)
            fold.obligations[item.obligation_id] = left
    opened = [_open(fold, owed, cause) for owed, cause in demanded.items()]
    for obligation in opened:
        fold.obligations[obligation.obligation_id] = obligation
    for obligation in (*opened, *changed):
        _report(fold, obligation)
    return opened, changed


def _resolution(fold: Fold, item: ObligationRow) -> str:
    row = fold.operations.get(item.command_id or "")
    if row is not None and row.resolution_type == SUPERSEDED:
        return SUPERSEDED
    if row is not None and not (row.state is OperationState.FAILED and fold.instance.status in CONSEQUENCES_SETTLED):
        return f"operation_{row.state.value.lower()}"
    return f"case_{fold.instance.status.value.lower()}"


def _open(fold: Fold, owed: Owed, cause: Cause) -> ObligationRow:
    command_id, kind = owed
    instance, now = fold.instance, fold.moment.business
    if command_id is None:
        version, told = instance.state_version + 1, case_envelope(fold, kind, cause, rfc3339(now))
    else:
        row = fold.operations[command_id]
        version, told = fold.at(command_id).version, envelope(row, kind, cause, rfc3339(now))
        asked_by = (instance.turned or {}).get("actor")
        if row.compensates is not None and asked_by is not None:
            told["asked_by"] = asked_by  # the undoing that ended badly was a person's decision
        if _undone_by_case(fold, command_id, kind):
            told[UNDOING] = True
    return ObligationRow(
        obligation_id=derived_id("obl", command_id or instance.workflow_id, kind.value, version),
        tenant=instance.tenant,
        workflow_id=instance.workflow_id,
        saga_id=instance.saga_id,
        command_id=command_id,
        kind=kind.value,
        failure_class=cause.failure.value,
        owner=fold.terms.exception_owner,
        opened_at=now,
        deadline_at=now + timedelta(seconds=fold.terms.exception_sla_seconds),
        envelope={**told, **_shared(fold, command_id)},
    )


def _shared(fold: Fold, command_id: str | None) -> dict[str, Any]:
    """What this trouble may have in common with others: whoever finds the same in many has found a cause."""
    row = fold.operations.get(command_id or "")
    told = {
        "agent_version": fold.instance.mandate.get("agent_version"),
        "worker": worker_of(row) if row is not None else None,
    }
    return {
        "agent": fold.instance.subject,
        "policy_sha256": fold.instance.mandate.get("policy_sha256"),
        "adapter_version": row.declaration_sha256 if row is not None else None,
        **{name: value for name, value in told.items() if value is not None},
    }


def _report(fold: Fold, obligation: ObligationRow) -> None:
    row = fold.operations.get(obligation.command_id or "")
    instance = fold.instance
    fold.send(
        ExceptionReported(
            reported_by=SOURCE,
            obligation=obligation,
            command_type=row.command_type if row else None,
            target_system=row.target_system if row else None,
            target_resource=row.target_resource if row else f"{instance.object_type}/{instance.object_id}",
            trace_id=row.trace_id if row else instance.trace_id,
        ),
        message_id=f"{obligation.obligation_id}:{obligation.version}",
        subject=event_subject(SOURCE, "exception", instance.tenant),
    )
