"""Going backwards: what a case has caused is undone in reverse order, one effect at a time, as governed operations.

Nothing is undone while anything of the case is in flight or unknown, after the pivot, or that another case caused. A
compensation is an operation of its own; the operation it undoes says how far it is.
"""

from datetime import timedelta
from typing import Final

from trueup_common.contracts.canonical import fingerprint
from trueup_common.contracts.declaration import CommandDeclaration, target_of
from trueup_common.contracts.events import Retired
from trueup_common.contracts.ids import command_id
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.pointer import fill, take
from trueup_common.contracts.states import CompensationState, OperationState
from trueup_common.contracts.topology import event_subject
from trueup_common.contracts.workflow import Direction
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.launch import wake_when_too_late
from trueup_orchestrator.core.operation import IN_FLIGHT, PERSONS, UNDECIDED, Trigger
from trueup_orchestrator.core.recovery import Pivot, pivot_of_all
from trueup_orchestrator.core.rows import new_row
from trueup_orchestrator.core.status import blocks_undoing, forward
from trueup_orchestrator.core.success import document_of

UNDO_PATIENCE_SECONDS: Final = 3600.0
UNDO_SUFFIX: Final = ":undo"

STATE_OF_UNDO: Final = {
    OperationState.SUCCESS: CompensationState.COMPENSATED,
    OperationState.RESOLVED: CompensationState.COMPENSATED,
    OperationState.NEEDS_REVIEW: CompensationState.COMPENSATION_UNKNOWN,
    **dict.fromkeys(UNDECIDED, CompensationState.COMPENSATION_UNKNOWN),
    **dict.fromkeys(IN_FLIGHT, CompensationState.COMPENSATING),
    **dict.fromkeys(PERSONS - {OperationState.NEEDS_REVIEW}, CompensationState.COMPENSATION_FAILED),
}
"""What the state of a compensation says about what it undoes; everything else is pending."""

_NOT_YET: Final = frozenset({CompensationState.NONE})


def undo(fold: Fold) -> None:
    """Take the next backward step, if one may be taken."""
    _follow(fold)
    rows = list(fold.operations.values())
    if pivot_of_all(rows) is Pivot.PASSED:
        _give_to_person(fold)
        return
    own = forward(rows)
    if any(blocks_undoing(row) for row in own):
        return
    for row in sorted(own, key=lambda row: (row.dispatch_sequence, row.command_id), reverse=True):
        if row.state is not OperationState.SUCCESS or row.compensation_state is CompensationState.COMPENSATED:
            continue
        if row.compensation_state not in _NOT_YET:
            return  # one at a time; a failed one is a person's
        declaration = _undone_by(fold, row)
        if declaration is not None:
            _begin(fold, row, declaration)
            return
    fold.undone = True


def _give_to_person(fold: Fold) -> None:
    """The pivot landed after all: nothing is undone, a person takes over."""
    turned = {**(fold.instance.turned or {}), "reason": "pivot_landed", "detail": "the pivot landed; nothing is undone"}
    fold.case_note("CaseTurned", direction=Direction.PERSON.value, reason="pivot_landed")
    fold.instance = fold.instance.evolve(direction=Direction.PERSON.value, turned=turned)


def _follow(fold: Fold) -> None:
    """Write into each succeeded operation how far its compensation is."""
    for row in list(fold.operations.values()):
        if row.compensates is None:
            continue
        state = STATE_OF_UNDO.get(row.state, CompensationState.COMPENSATION_PENDING)
        undone = fold.operations[row.compensates]
        if undone.compensation_state is not state:
            fold.at(undone.command_id).set(compensation_state=state)
            if state is CompensationState.COMPENSATED:
                fold.case_note("EffectUndone", command_id=undone.command_id, step_id=undone.step_id, by=row.command_id)


def _undone_by(fold: Fold, row: JournalRow) -> CommandDeclaration | None:
    """The declaration that undoes an operation; None where nothing has to or may be undone."""
    assert fold.workflow is not None
    mapping = fold.workflow.declarations[row.command_type].compensation
    if mapping is None:
        return None
    if mapping.only_if is not None and not take(document_of(row, row.receipt or {}), mapping.only_if):
        return None
    return fold.workflow.declarations[mapping.command_type]


def _begin(fold: Fold, row: JournalRow, declaration: CommandDeclaration) -> None:
    assert fold.workflow is not None
    mapping = fold.workflow.declarations[row.command_type].compensation
    assert mapping is not None
    payload = fill(document_of(row, row.receipt or {}), mapping.payload)
    now = fold.moment.business
    resource = target_of(declaration, payload, row.target_resource)
    target = {"system": declaration.system, "resource": resource, "expected_version": None}
    step_id = f"{row.step_id}{UNDO_SUFFIX}"
    undo_id = command_id(row.workflow_id, row.command_id + UNDO_SUFFIX, 1)
    _retire(fold, row, undo_id)
    fold.at(row.command_id).set(compensation_state=CompensationState.COMPENSATION_PENDING)
    fold.add(
        new_row(
            fold,
            declaration,
            command_id=undo_id,
            step_id=step_id,
            generation=row.generation,
            target_resource=resource,
            payload=payload,
            idempotency_key=f"{row.idempotency_key}{UNDO_SUFFIX}",
            request_fingerprint=fingerprint(declaration.type, target, payload),
            deadline_at=now + timedelta(seconds=max(UNDO_PATIENCE_SECONDS, declaration.retry_horizon_seconds)),
            compensates=row.command_id,
        )
    )
    fold.note(
        "CompensationStarted",
        actor=SOURCE,
        at=now,
        compensates=row.command_id,
        command_type=declaration.type,
        resource=resource,
    )
    wake_at = wake_when_too_late(fold.operation, declaration)
    fold.move(Trigger.TAKE_UP, Trigger.ADMIT, Trigger.ENQUEUE, wake_at=wake_at)


def _retire(fold: Fold, row: JournalRow, by: str) -> None:
    """What the operation established is no longer desired: not drift, but intent."""
    assert fold.workflow is not None
    declaration = fold.workflow.declarations[row.command_type]
    owed = [item for item in fold.instance.owed if item["command_id"] != row.command_id]
    if len(owed) != len(fold.instance.owed):
        fold.instance = fold.instance.evolve(owed=owed)
    known = document_of(row, row.receipt or {})
    elements = tuple((str(take(known, item.resource)), item.element) for item in declaration.establishes)
    if not elements:
        return
    fold.send(
        Retired(
            command_id=row.command_id,
            workflow_id=row.workflow_id,
            tenant=row.tenant,
            system=row.target_system,
            revision=fold.instance.revision,
            sequence=row.dispatch_sequence,
            retired_by=by,
            elements=elements,
            at=fold.moment.business,
        ),
        message_id=f"{row.command_id}:retired",
        subject=event_subject(SOURCE, "established", row.tenant),
    )
