"""Sealing a fold: instance, obligations, versions, the chained history and what the others are told, in one place."""

from datetime import timedelta
from typing import Final

from trueup_common.contracts.events import SettleRequested
from trueup_common.contracts.history import append
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    CompensationState,
    InstanceStatus,
    OperationState,
)
from trueup_common.contracts.topology import event_subject
from trueup_orchestrator.core.acts import end_acts, end_hand_back, end_ways_back
from trueup_orchestrator.core.attempts import barred
from trueup_orchestrator.core.case import Case, Decision
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.launch import operation_of
from trueup_orchestrator.core.obligations import RESOLVED, alert_of, settle
from trueup_orchestrator.core.operation import PERSONS, UNDECIDED
from trueup_orchestrator.core.recovery import pivot_of, pivot_of_all
from trueup_orchestrator.core.signals import let_go
from trueup_orchestrator.core.spending import spent
from trueup_orchestrator.core.status import REFUSALS, status_of_workflow
from trueup_orchestrator.core.telling import is_durable, of_interest, tell

_FREES_IDENTITY: Final = frozenset({OperationState.FAILED, OperationState.CANCELLED})


def status_of(instance: InstanceRow, row: JournalRow) -> InstanceStatus:
    """The status of a single-command case, which follows from its operation. A terminal case never changes."""
    if instance.status in INSTANCE_TERMINAL:
        return instance.status
    if row.state is OperationState.SUCCESS:
        if (instance.turned or {}).get("reason") == RESOLVED:
            return InstanceStatus.RESOLVED  # what it owed was settled by a person, not observed
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
    InstanceStatus.COMPENSATED: "compensated",
    InstanceStatus.SAFE_STOPPED: "safe_stopped",
}


def _free_identities(fold: Fold) -> None:
    """A business identity is free again once nothing of its operation stands in the world."""
    for row in list(fold.operations.values()):
        undone = row.compensation_state is CompensationState.COMPENSATED
        if row.identity is not None and (row.state in _FREES_IDENTITY or undone) and not barred(row):
            fold.at(row.command_id).set(identity=None)


def _follow(fold: Fold) -> None:
    """What follows from the operations for identities and instance."""
    _free_identities(fold)
    instance = fold.instance
    if fold.workflow is None:
        row = fold.operation
        status = status_of(instance, row)
        pivot = pivot_of(row.effect_class, row.state, proposed=row.proposed).value
    else:
        status = status_of_workflow(fold)
        pivot = pivot_of_all(fold.operations.values()).value
    if status is instance.status and pivot == instance.pivot:
        return
    closing = status in INSTANCE_TERMINAL and instance.closed_at is None
    fold.instance = instance.evolve(status=status, pivot=pivot)
    if closing:
        fold.instance = fold.instance.evolve(
            closed_at=fold.moment.business,
            resolution_type=resolution_of(fold.instance),
            wake_at=None,
            wait=None,
        )
        let_go(fold)


def resolution_of(instance: InstanceRow) -> str | None:
    """How a case that ends now was resolved."""
    reason = (instance.turned or {}).get("reason")
    return str(reason) if reason in REFUSALS else _RESOLUTIONS.get(instance.status)


def _ask(fold: Fold) -> None:
    """Ask the reconciler, once per commit and operation, only where the outcome is still open at the end."""
    now = fold.moment.business
    for command_id, reason in fold.asking.items():
        if fold.at(command_id).state not in UNDECIDED:
            continue
        row = fold.operation
        fold.set(
            reconciliation_status=row.reconciliation_status
            if fold.state is OperationState.RECONCILING
            else "requested",
            wake_at=now + timedelta(seconds=fold.terms.reminder_seconds),
        )
        fold.send(
            SettleRequested(
                operation=operation_of(row),
                fence=row.fence,
                reason=reason,
                late_until=fold.late_until.get(command_id),
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


def seal(fold: Fold) -> Decision:
    """Everything of one commit, ready to be stored and sent."""
    before = fold.before
    _ask(fold)
    _follow(fold)
    end_acts(fold)
    end_ways_back(fold)
    end_hand_back(fold)
    opened, changed = settle(fold)
    begun, moved = _versioned(fold)
    # Every change of an operation raises the version of its case: who decides on stale operations loses the race.
    told = bool(fold.notes or opened or changed) or fold.instance is not before.instance or fold.created
    told = told or (fold.workflow is not None and bool(begun or moved))
    instance_changed = told or bool(begun or moved)
    events: tuple[HistoryEvent, ...] = ()
    unpublished = before.unpublished
    if instance_changed:
        events = _chain(fold)
        durable = told and is_durable(fold, (*begun, *moved), (*opened, *changed))
        history = before.unpublished + events
        written = json_bytes(history) if durable else None
        last = events[-1] if events else None
        seq = last.seq if last else fold.instance.history_seq
        fold.instance = fold.instance.evolve(
            state_version=before.instance.state_version + 1,
            history_seq=seq,
            history_hash=last.hash if last else fold.instance.history_hash,
            published_seq=seq if durable else fold.instance.published_seq,
            spent=spent(fold, None if written is None else len(written), moved=bool(begun or moved)),
        )
        if told:
            tell(fold, of_interest(fold, (*begun, *moved)), history, written)
        unpublished = () if durable else history
    outgoing = tuple(fold.outgoing)
    fold.outgoing.clear()  # progress is made from the fold later: held there too, it would be a cycle
    return Decision(
        case=Case(
            fold.instance,
            tuple(fold.operations.values()),
            tuple(fold.obligations.values()),
            unpublished,
            fold.read_steps(),
        ),
        events=events,
        opened=tuple(opened),
        changed=tuple(changed),
        outgoing=outgoing,
        created=fold.created,
        begun=tuple(begun),
        moved=tuple(moved),
        instance_changed=instance_changed,
    )


def _versioned(fold: Fold) -> tuple[list[JournalRow], list[JournalRow]]:
    """New and changed operations, each with its next version."""
    begun: list[JournalRow] = []
    moved: list[JournalRow] = []
    for command_id, row in list(fold.operations.items()):
        stored = fold.known.get(command_id)
        if stored is row:
            continue
        fold.at(command_id).set(state_version=fold.version)
        (begun if stored is None else moved).append(fold.operation)
    return begun, moved
