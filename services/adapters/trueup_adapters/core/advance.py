"""How a ledger row moves when a task comes in: the new row, to be committed before anything follows from it.

Fences and `late_until` only grow. What returns from an attempt moves rows in `fold.py`.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from trueup_adapters.core.effect import EffectRow, LedgerStatus, Standing, standing
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import ErrorClass
from trueup_common.contracts.task import ExecuteTask, FindTask, Operation, Receipt

OUTCOME_GRACE_SECONDS: Final = 2.0
"""How long after its last possible moment an attempt's outcome may still be on its way into the ledger."""


def _new(operation: Operation, fence: int, status: LedgerStatus, now: datetime) -> EffectRow:
    return EffectRow.trusted(
        command_id=operation.command_id,
        tenant=operation.tenant,
        system=operation.target.system,
        workflow_id=operation.workflow_id,
        command_type=operation.command_type,
        idempotency_key=operation.idempotency_key,
        payload_sha256=operation.payload_sha256,
        operation=operation,
        status=status,
        error_class=None,
        fence=fence,
        attempt_id=None,
        sent_fence=0,
        sends_count=0,
        worker=None,
        grant_id=None,
        object_key=None,
        decided_by=None,
        send_by=None,
        sent_at=None,
        late_until=None,
        look_at=None,
        cursor=None,
        receipt=None,
        traceparent=None,
        state_version=1,
        created_at=now,
        updated_at=now,
    )


def late_until(send_by: datetime, declaration: CommandDeclaration) -> datetime:
    """Until when the target may still act on a request whose first byte left by `send_by` at the latest."""
    return send_by + timedelta(seconds=declaration.timeout_seconds + declaration.late_window_seconds)


def look_at(send_by: datetime, declaration: CommandDeclaration) -> datetime:
    """When a `SENT` row without an outcome is looked up: its worker would have answered by then if it were alive."""
    return send_by + timedelta(seconds=declaration.timeout_seconds + OUTCOME_GRACE_SECONDS)


def send(
    row: EffectRow | None,
    task: ExecuteTask,
    declaration: CommandDeclaration,
    *,
    now: datetime,
    send_by: datetime,
    worker: str,
    grant_id: str | None,
    object_key: str | None = None,
    traceparent: str | None = None,
) -> EffectRow:
    """The row as `SENT`, to be committed before the first byte."""
    known = row if row is not None else _new(task.operation, task.fence, LedgerStatus.INTENT, now)
    until = late_until(send_by, declaration)
    sent: EffectRow = known.evolve(
        status=LedgerStatus.SENT,
        error_class=None,
        fence=task.fence,
        attempt_id=task.attempt_id,
        sent_fence=task.fence,
        sends_count=known.sends_count + 1,
        worker=worker,
        grant_id=grant_id,
        object_key=object_key,
        decided_by=task.decided_by,
        send_by=send_by,
        sent_at=now,
        late_until=max(until, known.late_until) if known.late_until else until,
        look_at=look_at(send_by, declaration),
        receipt=None,
        traceparent=traceparent,
        updated_at=now,
    )
    return sent


def refuse(row: EffectRow | None, task: ExecuteTask, receipt: Receipt, now: datetime) -> EffectRow:
    """The row after a task that was not sent. A standing permanent rejection or a person's word stays what it is."""
    known = row if row is not None else _new(task.operation, task.fence, LedgerStatus.NOT_SENT, now)
    if standing(known) in (Standing.REJECTED_PERMANENT, Standing.MANUAL):
        return raise_fence(known, task.fence, now)
    refused: EffectRow = known.evolve(
        status=LedgerStatus.NOT_SENT,
        error_class=ErrorClass.TRANSIENT,
        fence=task.fence,
        look_at=None,
        receipt=receipt,
        updated_at=now,
    )
    return refused


def entomb(task: FindTask, now: datetime) -> EffectRow:
    """The tombstone: no attempt of an older fence can send any more."""
    return _new(task.operation, task.fence, LedgerStatus.TOMBSTONE, now)


def raise_fence(row: EffectRow, fence: int, now: datetime) -> EffectRow:
    """The row under a higher fence; nothing else changes."""
    if fence <= row.fence:
        return row
    raised: EffectRow = row.evolve(fence=fence, updated_at=now)
    return raised


def keep_cursor(
    row: EffectRow, attempt_id: str, cursor: dict[str, Any], declaration: CommandDeclaration, now: datetime
) -> EffectRow | None:
    """The row with progress of the attempt that holds it, its times prolonged; None where the lease is lost."""
    if row.status is not LedgerStatus.SENT or row.attempt_id != attempt_id or row.fence != row.sent_fence:
        return None
    until = late_until(now, declaration)
    kept: EffectRow = row.evolve(
        cursor=cursor,
        late_until=max(until, row.late_until) if row.late_until else until,
        look_at=look_at(now, declaration),
        updated_at=now,
    )
    return kept
