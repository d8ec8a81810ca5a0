"""Folding a receipt: only the newest attempt's own receipt moves an operation; an older one is evidence and stays so.

Doubt is never failure: a rejection without a class of its own counts as unknown, and a permanent rejection means
nothing while an older attempt is known to have landed.
"""

from datetime import timedelta
from typing import Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.states import ErrorClass, Findability, OperationState, ReceiptStatus
from trueup_common.contracts.task import Receipt
from trueup_orchestrator.core import attempts
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import bury, pause
from trueup_orchestrator.core.operation import UNDECIDED, Trigger
from trueup_orchestrator.core.recovery import Situation
from trueup_orchestrator.core.retry import Exhausted, next_attempt
from trueup_orchestrator.core.success import succeed

CONFLICT_CODES: Final = frozenset({"version_conflict", "foreign_object", "locked", "identity_in_use"})
"""Business rejections which say that somebody else holds the target: owned by a person, never overwritten."""

FENCE_LEAP: Final = 100
"""An operation that goes on before its settlement is finished leaps over the fences that finds may have used."""

_LOST: Final = {OperationState.DISPATCHING: Trigger.LOSE_START, OperationState.RUNNING: Trigger.LOSE_LEASE}


def fold_receipt(fold: Fold, receipt: Receipt, declaration: CommandDeclaration, cause: str | None) -> None:
    """One receipt, in whatever state it meets the operation."""
    row = fold.operation
    own = receipt.fence == row.fence and receipt.attempt_id == attempt_id(row.command_id, row.fence)
    fold.note(
        "ReceiptReceived" if own else "OlderReceiptReceived",
        actor=f"adapter:{receipt.system}",
        at=receipt.ended_at,
        cause=cause,
        attempt_id=receipt.attempt_id,
        fence=receipt.fence,
        status=receipt.status.value,
        error_class=receipt.error_class and receipt.error_class.value,
        error_code=receipt.error_code,
        external_status=receipt.external_status,
        external_resource_id=receipt.external_resource_id,
        found=receipt.found or None,
    )
    fold.set(
        **attempts.received(row, receipt),
        last_external_status=receipt.external_status or row.last_external_status,
        started_at=row.started_at or receipt.started_at,
    )
    if own:
        _own(fold, receipt, declaration)


def _own(fold: Fold, receipt: Receipt, declaration: CommandDeclaration) -> None:
    if fold.operation.proposed and fold.state is OperationState.QUEUED:
        # the receipt proves that the grant was minted and the task sent
        began = receipt.status not in (ReceiptStatus.NOT_SENT, ReceiptStatus.STALE)
        fold.move(Trigger.DISPATCH, *((Trigger.START,) if began else ()))
    if receipt.status is ReceiptStatus.NOT_SENT:
        _unsent(fold, receipt, declaration)
    elif receipt.status is ReceiptStatus.STALE:
        _stale(fold, receipt, declaration)
    else:
        if fold.state is OperationState.DISPATCHING:
            fold.move(Trigger.START)
        _outcome(fold, receipt, declaration)
    if fold.state not in UNDECIDED and fold.operation.reconciliation_status in ("requested", "running"):
        again = fold.state in (OperationState.QUEUED, OperationState.RETRY_PENDING)
        leap = FENCE_LEAP if again else 0
        fold.set(reconciliation_status="overtaken", fence=fold.operation.fence + leap)


def _unsent(fold: Fold, receipt: Receipt, declaration: CommandDeclaration) -> None:
    """Provably nothing sent: back into the queue after a pause, no attempt spent."""
    if not fold.knows(Trigger.RETURN_UNSENT):
        return
    entry = attempts.of_fence(fold.operation, receipt.fence)
    if entry is not None and entry["sent"]:
        return  # the same attempt is known to have been sent: nothing is proved
    fold.move(Trigger.RETURN_UNSENT)
    if fold.operation.cancel_requested and not attempts.barred(fold.operation):
        fold.move(Trigger.CANCEL)
    else:
        pause(fold, declaration, receipt.error_code or "not_sent", receipt.error_detail or "")


def _stale(fold: Fold, receipt: Receipt, declaration: CommandDeclaration) -> None:
    """The ledger holds a higher fence. This delivery sent nothing, but an earlier one may have: look."""
    trigger = _LOST.get(fold.state)
    if trigger is not None:
        suspect(fold, trigger, declaration, receipt.error_code or "stale_fence")


def suspect(fold: Fold, trigger: Trigger, declaration: CommandDeclaration, code: str) -> None:
    """No word from an attempt that was out: ask whether it happened."""
    start_by, late_until = fold.operation.start_by, None
    if start_by is not None:
        late_until = start_by + timedelta(seconds=declaration.timeout_seconds + declaration.late_window_seconds)
    fold.fail(trigger, ErrorClass.UNKNOWN, code)
    fold.recover(Situation.UNKNOWN)
    fold.ask(code, late_until)


def _outcome(fold: Fold, receipt: Receipt, declaration: CommandDeclaration) -> None:
    """CONFIRMED, REJECTED or UNKNOWN of the newest attempt."""
    code = receipt.error_code or receipt.status.value.lower()
    detail = receipt.error_detail or ""
    kind = receipt.error_class
    if receipt.status is ReceiptStatus.CONFIRMED:
        _confirmed(fold, receipt, declaration)
    elif receipt.status is ReceiptStatus.UNKNOWN or kind in (None, ErrorClass.UNKNOWN):
        leave_unknown(fold, receipt, declaration, code, detail)
    elif kind is ErrorClass.TRANSIENT:
        if fold.knows(Trigger.REJECT_TRANSIENT):
            fold.fail(Trigger.REJECT_TRANSIENT, kind, code, detail)
            schedule(fold, declaration, receipt.retry_after_seconds, unsent=receipt.sent_at is None)
    elif attempts.barred(fold.operation):
        leave_unknown(fold, receipt, declaration, "older_attempt_confirmed", detail)
    else:
        conflict = kind is ErrorClass.BUSINESS and code in CONFLICT_CODES
        trigger = Trigger.CONFLICT if conflict else Trigger.REJECT_PERMANENT
        if fold.knows(trigger):
            fold.fail(trigger, kind, code, detail, human_review_required=conflict)
            fold.recover(Situation.PERMANENT)


def _confirmed(fold: Fold, receipt: Receipt, declaration: CommandDeclaration) -> None:
    if fold.knows(Trigger.CONFIRM):
        succeed(
            fold,
            declaration,
            result=receipt.result,
            reference=receipt.attempt_id,
            external_resource_id=receipt.external_resource_id,
            external_version=receipt.external_version,
            observations=receipt.observations,
        )


def leave_unknown(fold: Fold, receipt: Receipt, declaration: CommandDeclaration, code: str, detail: str) -> None:
    """Only looking can tell; where nothing can be looked up, a person can."""
    if not fold.knows(Trigger.LEAVE_UNKNOWN):
        return
    fold.fail(Trigger.LEAVE_UNKNOWN, ErrorClass.UNKNOWN, code, detail)
    fold.recover(Situation.UNKNOWN)
    if declaration.findability is Findability.NONE or declaration.reconciliation == "person":
        fold.move(Trigger.RECONCILE)
        fold.move(Trigger.GIVE_UP, human_review_required=True)
        return
    fold.ask(code, receipt.late_until)


def schedule(
    fold: Fold,
    declaration: CommandDeclaration,
    retry_after_seconds: float | None = None,
    *,
    unsent: bool = False,
    situation: Situation = Situation.TRANSIENT,
) -> None:
    """When a RETRY_PENDING operation is tried again, or that it never is."""
    row, now = fold.operation, fold.moment.business
    doubted = attempts.barred(row)
    if row.cancel_requested and not doubted:
        fold.move(Trigger.CANCEL)
        return
    backoff = row.backoff_count + unsent
    plan = next_attempt(
        declaration.retry,
        attempts_count=row.attempt_count - row.attempts_before,
        failures_count=row.attempt_count - row.attempts_before + backoff,
        seed=f"{row.command_id}:retry:{row.fence}:{row.attempt_count}:{backoff}",
        now=now,
        deadline_at=row.deadline_at,
        timeout_seconds=declaration.timeout_seconds,
        retry_after_seconds=retry_after_seconds,
    )
    if not isinstance(plan, Exhausted):
        fold.recover(situation)
        fold.set(backoff_count=backoff, next_retry_at=plan.at, wake_at=plan.at)
    elif doubted:
        fold.move(Trigger.FALL_DUE)
        fold.fail(Trigger.DOUBT, ErrorClass.UNKNOWN, "older_attempt_confirmed")
        fold.ask("older_attempt_confirmed")
    else:
        bury(fold, Trigger.EXHAUST, plan.reason)
