"""Sealing a fold: instance, obligations, versions, the chained history and what the others are told, in one place."""

from datetime import timedelta
from typing import Any, Final

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import CaseAnswered, CaseChanged, SettleRequested
from trueup_common.contracts.history import append
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow
from trueup_common.contracts.shape import written
from trueup_common.contracts.states import ANSWERED, INSTANCE_TERMINAL, InstanceStatus, OperationState
from trueup_common.contracts.topology import event_subject
from trueup_orchestrator.core.attempts import barred
from trueup_orchestrator.core.case import Case, Decision
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.launch import operation_of
from trueup_orchestrator.core.obligations import alert_of, settle
from trueup_orchestrator.core.operation import IN_FLIGHT, PERSONS, UNDECIDED
from trueup_orchestrator.core.recovery import pivot_of

PROGRESS_DELAY_SECONDS: Final = 1.0
_FREES_IDENTITY: Final = frozenset({OperationState.FAILED, OperationState.CANCELLED})


def status_of(instance: InstanceRow, row: JournalRow) -> InstanceStatus:
    """The status of a single-command case, which follows from its operation. A terminal case never changes."""
    if instance.status in INSTANCE_TERMINAL:
        return instance.status
    if row.state is OperationState.SUCCESS:
        if alert_of(row) is not None:
            return InstanceStatus.HUMAN_TAKEOVER
        return InstanceStatus.VERIFYING if instance.owed else InstanceStatus.CLOSED
    if row.state in PERSONS:
        return InstanceStatus.HUMAN_TAKEOVER
    if row.state is OperationState.CANCELLED:
        return InstanceStatus.CANCELLED
    if row.state is OperationState.RESOLVED:
        return InstanceStatus.RESOLVED
    return InstanceStatus.CANCEL_PENDING if row.cancel_requested else InstanceStatus.RUNNING


_RESOLUTIONS: Final = {
    InstanceStatus.CLOSED: "converged",
    InstanceStatus.CANCELLED: "cancelled",
    InstanceStatus.RESOLVED: "resolved",
}


def _follow(fold: Fold) -> None:
    """What follows from the operation for identity and instance."""
    row = fold.operation
    if row.identity is not None and row.state in _FREES_IDENTITY and not barred(row):
        fold.set(identity=None)
    instance = fold.instance
    status = status_of(instance, row)
    pivot = pivot_of(row.effect_class, row.state, proposed=row.proposed).value
    if status is not instance.status or pivot != instance.pivot:
        closing = status in INSTANCE_TERMINAL and instance.closed_at is None
        fold.instance = instance.evolve(
            status=status,
            pivot=pivot,
            closed_at=fold.moment.business if closing else instance.closed_at,
            resolution_type=_RESOLUTIONS.get(status) if closing else instance.resolution_type,
        )


def _ask(fold: Fold) -> None:
    """Ask the reconciler, once per commit and only where the outcome is still open at its end."""
    if fold.asking is None or fold.state not in UNDECIDED:
        return
    now, row = fold.moment.business, fold.operation
    fold.set(
        reconciliation_status=row.reconciliation_status if fold.state is OperationState.RECONCILING else "requested",
        wake_at=now + timedelta(seconds=fold.terms.reminder_seconds),
    )
    fold.send(
        SettleRequested(
            operation=operation_of(row),
            fence=row.fence,
            reason=fold.asking,
            late_until=fold.late_until,
            requested_at=now,
            deadline_at=now + timedelta(seconds=fold.terms.exception_sla_seconds),
        ),
        message_id=f"{row.command_id}:{row.fence}:settle:{fold.version}",
        subject=event_subject(SOURCE, "settle", row.tenant),
    )


def _chain(fold: Fold) -> tuple[HistoryEvent, ...]:
    """The notes of this commit as chained events."""
    instance, events = fold.instance, []
    seq, head = instance.history_seq, instance.history_hash
    for note in fold.notes:
        seq += 1
        event = append(
            workflow_id=instance.workflow_id,
            tenant=instance.tenant,
            seq=seq,
            prev_hash=head,
            type=note.type,
            occurred_at=note.occurred_at,
            recorded_at=fold.moment.business,
            actor=note.actor,
            payload=note.payload,
            causation_id=note.causation_id,
            correlation_id=instance.correlation_id,
            trace_id=instance.trace_id,
        )
        head = event.hash
        events.append(event)
    return tuple(events)


def _durable(fold: Fold, obligations_moved: bool) -> bool:
    """Progress of healthy running may be lost; everything else is told durably."""
    row = fold.operation
    running = row.state in IN_FLIGHT or (row.state is OperationState.QUEUED and row.next_retry_at is None)
    return obligations_moved or not running or fold.instance.status is not InstanceStatus.RUNNING


def _told(row: InstanceRow | JournalRow) -> dict[str, Any]:
    """A row without its empty columns: most are, and the contract fills them in again."""
    return {name: value for name, value in row.__dict__.items() if value is not None}


def _tell(fold: Fold, history: tuple[HistoryEvent, ...], durable: bool) -> None:
    """The whole case to the gateway, and the answer to the replica whose client waits."""
    instance, row = fold.instance, fold.operation
    case, operation = written(_told(instance)), written(_told(row))
    body = {
        "instance": case,
        "operations": (operation,),
        "obligations": written(list(fold.obligations.values())),
        "history": written(history),
    }
    message = fold.envelope(
        body,
        f"{instance.workflow_id}:{instance.state_version}",
        event_subject(SOURCE, "case", row.tenant),
        CaseChanged.__name__,
    )
    fold.outgoing.append(
        Outgoing(
            message,
            durable=durable,
            delay_seconds=0.0 if durable else PROGRESS_DELAY_SECONDS,
            coalesce=instance.workflow_id,
        )
    )
    newly = row.state in ANSWERED and (fold.created or fold.before.operation.state not in ANSWERED)
    if newly and row.reply_to is not None:
        message = fold.envelope(
            {"instance": case, "operation": operation},
            f"{row.command_id}:{row.state_version}:answered",
            row.reply_to,
            CaseAnswered.__name__,
        )
        fold.outgoing.append(Outgoing(message, durable=False, core=True))


def seal(fold: Fold) -> Decision:
    """Everything of one commit, ready to be stored and sent."""
    before = fold.before
    _ask(fold)
    _follow(fold)
    opened, closed = settle(fold)
    operation_changed = fold.operation is not before.operation or fold.created
    instance_changed = bool(fold.notes or opened or closed) or fold.instance is not before.instance or fold.created
    if operation_changed:
        fold.set(state_version=fold.version)
    events: tuple[HistoryEvent, ...] = ()
    if instance_changed:
        events = _chain(fold)
        durable = _durable(fold, bool(opened or closed))
        last = events[-1] if events else None
        seq = last.seq if last else fold.instance.history_seq
        fold.instance = fold.instance.evolve(
            state_version=before.instance.state_version + 1,
            history_seq=seq,
            history_hash=last.hash if last else fold.instance.history_hash,
            published_seq=seq if durable else fold.instance.published_seq,
        )
        _tell(fold, before.unpublished + events, durable)
        unpublished = () if durable else before.unpublished + events
    else:
        unpublished = before.unpublished
    return Decision(
        case=Case(fold.instance, fold.operation, tuple(fold.obligations.values()), unpublished),
        events=events,
        opened=tuple(opened),
        changed=tuple(closed),
        outgoing=tuple(fold.outgoing),
        created=fold.created,
        operation_changed=operation_changed,
        instance_changed=instance_changed,
    )
