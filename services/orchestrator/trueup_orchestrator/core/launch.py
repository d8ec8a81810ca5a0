"""Dispatching one operation: the last look at authority and deadline, then fence, lease and task in one step.

The task goes out directly where the grant from acceptance still covers the attempt; otherwise it is proposed, and the
gateway mints the grant and publishes it. Either way the lease is held from here on.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.events import GrantRefused, GrantRequest
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import ErrorClass, OperationState
from trueup_common.contracts.task import ExecuteTask, Operation, Target
from trueup_common.contracts.topology import grant_subject, task_subject
from trueup_orchestrator.core.acts import decided_by
from trueup_orchestrator.core.attempts import barred, dispatched, unsent
from trueup_orchestrator.core.case import Authority
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.operation import Trigger
from trueup_orchestrator.core.recovery import Situation
from trueup_orchestrator.core.retry import DEADLINE_PASSED, Exhausted, latest_start, next_attempt

_TICK: Final = timedelta(milliseconds=1)


@record
class AcceptanceGrant:
    """The grant that came with the command; good for the first attempt only."""

    token: str = ""
    expires_at: datetime | None = None


def operation_of(row: JournalRow) -> Operation:
    """The unchanging part of a task."""
    target = Target.trusted(
        system=row.target_system, resource=row.target_resource, expected_version=row.expected_version
    )
    return Operation.trusted(
        command_id=row.command_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        command_type=row.command_type,
        declaration_sha256=row.declaration_sha256,
        target=target,
        payload=row.payload,
        payload_sha256=row.payload_sha256,
        idempotency_key=row.idempotency_key,
        correlation_id=row.correlation_id,
        payload_ref=row.payload_ref,
    )


def mandate_expired(instance: InstanceRow, now: datetime) -> bool:
    """True where the mandate's lifetime is over (business time), also as an operator renewed it."""
    if instance.mandate_until is not None and instance.mandate_until > now:
        return False
    return datetime.fromisoformat(instance.mandate["expires_at"]) <= now


def too_late(row: JournalRow, declaration: CommandDeclaration, now: datetime) -> bool:
    """True where an attempt could not finish before the deadline any more."""
    return now > latest_start(row.deadline_at, declaration.timeout_seconds)


def wake_when_too_late(row: JournalRow, declaration: CommandDeclaration) -> datetime:
    """When a queued operation has waited too long."""
    return latest_start(row.deadline_at, declaration.timeout_seconds) + _TICK


def bury(fold: Fold, trigger: Trigger, reason: str) -> None:
    """Into the dead letters: isolated, diagnosed, owned."""
    fold.fail(
        trigger,
        fold.operation.error_class or ErrorClass.TRANSIENT,
        reason,
        fold.operation.error_detail or "",
        dead_lettered_at=fold.moment.business,
        dead_letter_reason=reason,
        human_review_required=True,
    )
    fold.recover(Situation.EXHAUSTED)


def pause(fold: Fold, declaration: CommandDeclaration, code: str, detail: str = "") -> None:
    """Keep a queued operation queued for a while without spending an attempt; buries it where time is up."""
    row, now = fold.operation, fold.moment.business
    failures = row.backoff_count + 1
    plan = next_attempt(
        declaration.retry,
        attempts_count=0,
        failures_count=failures,
        seed=f"{row.command_id}:pause:{row.fence}:{failures}",
        now=now,
        deadline_at=row.deadline_at,
        timeout_seconds=declaration.timeout_seconds,
    )
    if row.error_code != code or isinstance(plan, Exhausted):
        fold.own_note("DispatchPaused", reason=code)
    fold.set(error_class=ErrorClass.TRANSIENT, error_code=code, error_detail=detail or None, backoff_count=failures)
    if isinstance(plan, Exhausted):
        bury(fold, Trigger.PASS_DEADLINE, plan.reason)
    else:
        fold.set(next_retry_at=plan.at, wake_at=plan.at)


def _stopped(fold: Fold, declaration: CommandDeclaration, authority: Authority) -> bool:
    """Whatever forbids dispatching now; moves the operation accordingly."""
    row, now = fold.operation, fold.moment.business
    if barred(row):
        fold.own_note("DispatchDoubted", reason="an older attempt landed")
        fold.fail(Trigger.DOUBT, ErrorClass.UNKNOWN, "older_attempt_confirmed")
        fold.ask("older_attempt_confirmed")
        return True
    expired = mandate_expired(fold.instance, now)
    if (authority.revoked or expired) and row.compensates is None:
        code = "revoked" if authority.revoked else "mandate_expired"
        fold.own_note("DispatchRefused", reason=authority.revoked or code)
        detail = authority.revoked or "the mandate's lifetime is over"
        fold.fail(Trigger.REFUSE_GRANT, ErrorClass.PERMANENT, code, detail)
        return True
    if too_late(row, declaration, now):
        fold.own_note("DeadlinePassed")
        bury(fold, Trigger.PASS_DEADLINE, DEADLINE_PASSED)
        return True
    held = authority.holds_back(row.risk)
    if held is not None:
        pause(fold, declaration, held)
    return held is not None


def dispatch(
    fold: Fold,
    declaration: CommandDeclaration,
    authority: Authority,
    *,
    sequence: int,
    grant: AcceptanceGrant | None = None,
) -> bool:
    """Send the task of a queued operation, or propose it. False where something else happened to it.

    `sequence` grows across all cases, whatever clocks do: the later dispatch owns what both establish. In its own case
    it is the highest in any event, since the order of dispatches is the order of undoing.
    """
    row = fold.operation
    if row.state is not OperationState.QUEUED or row.proposed or _stopped(fold, declaration, authority):
        return False
    moment, fence = fold.moment, row.fence + 1
    left = (latest_start(row.deadline_at, declaration.timeout_seconds) - moment.business).total_seconds()
    start_by = moment.real + timedelta(seconds=min(declaration.start_window_seconds, left))
    ends_by = start_by + timedelta(seconds=declaration.timeout_seconds)
    granted = bool(
        grant and grant.token and fence == 1 and grant.expires_at is not None and grant.expires_at >= ends_by
    )
    task = ExecuteTask.trusted(
        operation=operation_of(row),
        fence=fence,
        attempt_id=attempt_id(row.command_id, fence),
        start_by=start_by,
        lease_expires_at=ends_by + timedelta(seconds=fold.terms.lease_margin_seconds),
        deadline_at=row.deadline_at,
        grant=grant.token if granted and grant else "",
        decided_by=decided_by(row),
        min_epoch=0,
    )
    taken: dict[str, Any] = {
        **dispatched(row, fence),
        "fence": fence,
        "lease_owner": f"adapter:{row.target_system}",
        "lease_acquired_at": moment.real,
        "lease_expires_at": task.lease_expires_at,
        "start_by": start_by,
        "dispatch_sequence": max(sequence, 1 + max(other.dispatch_sequence for other in fold.operations.values())),
        "last_attempt_at": moment.business,
    }
    fold.own_note("TaskDispatched", attempt_id=task.attempt_id, fence=fence, proposed=not granted)
    if granted:
        fold.move(Trigger.DISPATCH, **taken)
        fold.send(
            task,
            message_id=task.attempt_id,
            subject=task_subject(row.target_system, "execute", row.tenant),
            first=True,
        )
        return True
    fold.set(**taken, proposed=True, wake_at=None, next_retry_at=None)
    request = _request(fold, task)
    fold.send(request, message_id=f"{task.attempt_id}:proposed", subject=grant_subject(row.tenant), first=True)
    return True


def _request(fold: Fold, task: ExecuteTask) -> GrantRequest:
    row, instance = fold.operation, fold.instance
    undone = fold.operations.get(row.compensates) if row.compensates else None
    return GrantRequest.trusted(
        mandate_id=row.mandate_id,
        task=task,
        definition=instance.definition,
        version=instance.version,
        document_sha256=instance.sha256 if fold.workflow is not None else None,
        approval_id=row.approval_id,
        compensation=undone is not None,
        compensates_type=undone.command_type if undone is not None else None,
    )


def fold_refusal(fold: Fold, refused: GrantRefused, declaration: CommandDeclaration, cause: str | None) -> None:
    """The gateway minted no grant: nothing was or will be sent for this fence."""
    row = fold.operation
    if row.state is not OperationState.QUEUED or not row.proposed or refused.fence != row.fence:
        return
    fold.note(
        "GrantRefused",
        actor="gateway",
        at=fold.moment.business,
        cause=cause,
        fence=refused.fence,
        check=refused.check,
        reason=refused.detail,
    )
    fold.drop_lease()
    fold.set(**unsent(row, refused.fence))
    if row.cancel_requested:
        fold.move(Trigger.CANCEL)
    elif barred(row):
        fold.fail(Trigger.DOUBT, ErrorClass.UNKNOWN, "older_attempt_confirmed")
        fold.ask("older_attempt_confirmed")
    elif refused.transient:
        pause(fold, declaration, refused.check, refused.detail)
    else:
        code = "revoked" if refused.check == "revoked" else "grant_refused"
        fold.fail(Trigger.REFUSE_GRANT, ErrorClass.PERMANENT, code, f"{refused.check}: {refused.detail}")
