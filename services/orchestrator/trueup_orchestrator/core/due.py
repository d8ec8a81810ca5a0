"""What time alone brings about: retries fall due, deadlines pass, leases run out, settlements are asked for again.

Waits and deadlines are business time, leases are real time.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import ErrorClass, OperationState
from trueup_common.contracts.task import RunningAttempt
from trueup_orchestrator.core.attempts import barred, of_fence, progressed
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import bury, too_late, wake_when_too_late
from trueup_orchestrator.core.operation import IN_FLIGHT, UNDECIDED, Trigger
from trueup_orchestrator.core.receipts import suspect
from trueup_orchestrator.core.retry import DEADLINE_PASSED

LEASE_EXPIRED: Final = "lease_expired"


def fold_due(fold: Fold, declaration: CommandDeclaration) -> None:
    """Look at an operation whose time has come; does nothing where it has not."""
    row = fold.operation
    if row.lease_expires_at is not None:
        if row.lease_expires_at <= fold.moment.real:
            _expire(fold, declaration)
        return
    if row.wake_at is None or row.wake_at > fold.moment.business:
        return
    if row.state is OperationState.RETRY_PENDING:
        _retry(fold, declaration)
    elif row.state is OperationState.QUEUED:
        _waited(fold, declaration)
    elif row.state in UNDECIDED:
        fold.ask("reminder")
    else:
        fold.set(wake_at=None)


def _expire(fold: Fold, declaration: CommandDeclaration) -> None:
    """Nobody renewed the lease: the attempt may be dead, or its word is late. The outside is asked."""
    row = fold.operation
    fold.own_note(
        "LeaseExpired", fence=row.fence, lease_owner=row.lease_owner, heartbeat=row.heartbeat_at is not None or None
    )
    if row.state is OperationState.QUEUED:
        fold.move(Trigger.DISPATCH, start_by=row.start_by)  # proposed: the gateway may have sent it
    trigger = Trigger.LOSE_START if fold.state is OperationState.DISPATCHING else Trigger.LOSE_LEASE
    suspect(fold, trigger, declaration, LEASE_EXPIRED)


def _retry(fold: Fold, declaration: CommandDeclaration) -> None:
    row = fold.operation
    if barred(row):
        fold.own_note("RetryDoubted", reason="an older attempt landed")
        fold.move(Trigger.FALL_DUE)
        fold.fail(Trigger.DOUBT, ErrorClass.UNKNOWN, "older_attempt_confirmed")
        fold.ask("older_attempt_confirmed")
    elif row.cancel_requested:
        fold.own_note("CancelSettled")
        fold.move(Trigger.CANCEL)
    elif too_late(row, declaration, fold.moment.business):
        fold.own_note("DeadlinePassed")
        bury(fold, Trigger.EXHAUST, DEADLINE_PASSED)
    else:
        fold.own_note("RetryFellDue", attempt_count=row.attempt_count)
        fold.move(Trigger.FALL_DUE, wake_at=wake_when_too_late(row, declaration))


def _waited(fold: Fold, declaration: CommandDeclaration) -> None:
    """A queued operation whose pause is over, or that waited too long for its window."""
    row = fold.operation
    if barred(row):
        fold.own_note("DispatchDoubted", reason="an older attempt landed")
        fold.fail(Trigger.DOUBT, ErrorClass.UNKNOWN, "older_attempt_confirmed")
        fold.ask("older_attempt_confirmed")
    elif row.cancel_requested:
        fold.own_note("CancelSettled")
        fold.move(Trigger.CANCEL)
    elif too_late(row, declaration, fold.moment.business):
        fold.own_note("DeadlinePassed")
        bury(fold, Trigger.PASS_DEADLINE, DEADLINE_PASSED)
    else:
        fold.set(next_retry_at=None, wake_at=wake_when_too_late(row, declaration))


def fold_beat(fold: Fold, attempt: RunningAttempt, worker: str, at: datetime, declaration: CommandDeclaration) -> None:
    """A worker says that the newest attempt is alive: it runs, and its lease is renewed once half of it is used."""
    row = fold.operation
    if attempt.fence != row.fence:
        return
    real, known = fold.moment.real, of_fence(row, row.fence) or {}
    until = real + timedelta(seconds=declaration.timeout_seconds + fold.terms.lease_margin_seconds)
    if row.state is OperationState.RUNNING:
        half = timedelta(seconds=declaration.timeout_seconds / 2)
        if row.lease_expires_at is None or row.lease_expires_at - real < half:
            fold.set(lease_owner=worker, lease_expires_at=until, heartbeat_at=at)
        _progress(fold, known, attempt.progress, declaration.progress_seconds)
        return
    proposed = row.state is OperationState.QUEUED and row.proposed
    if not proposed and row.state is not OperationState.DISPATCHING and not fold.knows(Trigger.BEAT):
        return
    fold.note("AttemptStarted", actor=worker, at=at, fence=row.fence, progress=attempt.progress or None)
    if proposed:
        fold.move(Trigger.DISPATCH)
    if fold.state is OperationState.DISPATCHING:
        fold.move(Trigger.START, started_at=row.started_at or fold.moment.business)
        until = max(until, row.lease_expires_at or real)
    else:
        fold.move(Trigger.BEAT, lease_acquired_at=real, start_by=real)
    fold.set(lease_owner=worker, lease_expires_at=until, heartbeat_at=at)
    fold.set(**progressed(fold.operation, attempt.progress, real, stalled=False))


def _progress(fold: Fold, known: dict[str, Any], progress: int, patience_seconds: float) -> None:
    """A beat without progress past the declared bound is an exception until the attempt gets on or ends."""
    row, real = fold.operation, fold.moment.real
    since = datetime.fromisoformat(known["progress_at"]) if known.get("progress_at") else real
    quiet_seconds = (real - since).total_seconds()
    grew = progress > known.get("progress", -1)
    if grew and known.get("stalled"):
        fold.own_note("ProgressResumed", fence=row.fence, progress=progress)
        fold.set(**progressed(row, progress, real, stalled=False))
    elif grew and quiet_seconds * 4 > patience_seconds:  # not every small step is worth a write
        fold.set(**progressed(row, progress, real, stalled=False))
    elif not grew and quiet_seconds > patience_seconds and not known.get("stalled"):
        fold.own_note("ProgressStalled", fence=row.fence, progress=progress, quiet_seconds=int(quiet_seconds))
        fold.set(**progressed(row, progress, since, stalled=True))


def fold_cancel(fold: Fold, *, reason: str, actor: str, cause: str | None) -> None:
    """Cancel what is not sent; what may be out is only marked and stays until it is settled."""
    row = fold.operation
    if row.cancel_requested or not fold.knows(Trigger.CANCEL):
        return
    fold.note("CancelRequested", actor=actor, at=fold.moment.business, cause=cause, reason=reason)
    out = row.state in IN_FLIGHT or row.state in UNDECIDED or row.proposed
    fold.set(cancel_requested=True)
    if out:
        return
    if barred(row):
        fold.set(wake_at=fold.moment.business, next_retry_at=fold.moment.business)  # looked at first, by its own timer
    else:
        fold.move(Trigger.CANCEL)
