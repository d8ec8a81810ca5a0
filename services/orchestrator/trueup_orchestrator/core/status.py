"""The status of a workflow: a pure function of its steps, its operations and the way it moves.

A terminal status never changes, and none is reached while any operation is on its way or unknown.
"""

from collections.abc import Iterable
from typing import Final

from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import (
    INSTANCE_TERMINAL,
    SETTLED,
    CompensationState,
    InstanceStatus,
    OperationState,
)
from trueup_common.contracts.workflow import STEP_OVER, Direction, Reaction, StepKind, StepPhase, StepState
from trueup_orchestrator.core.attempts import barred
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.obligations import RESOLVED, alert_of
from trueup_orchestrator.core.operation import PERSONS

CANCELLED: Final = "cancelled"
OBJECT_IN_USE: Final = "object_in_use"
START_KEY_IN_USE: Final = "start_key_in_use"
REFUSALS: Final = frozenset({OBJECT_IN_USE, START_KEY_IN_USE})
"""Reasons for which a case ends before it began: nothing was done, so nothing is owed."""

ENDS_CANCELLED: Final = frozenset({CANCELLED}) | REFUSALS

_UNDO_OPEN: Final = frozenset({CompensationState.COMPENSATION_PENDING, CompensationState.COMPENSATING})


def on_its_way(row: JournalRow) -> bool:
    """True while something may still happen by itself to an operation."""
    return row.state not in SETTLED and row.state not in PERSONS


def forward(rows: Iterable[JournalRow]) -> list[JournalRow]:
    """The steps' own operations, without compensations."""
    return [row for row in rows if row.compensates is None]


def blocks_undoing(row: JournalRow) -> bool:
    """True while an operation keeps every backward step from starting: on its way, or unknown to all but a person."""
    return on_its_way(row) or row.state is OperationState.NEEDS_REVIEW or barred(row)


def continues(fold: Fold, step: StepState) -> bool:
    """True where the document says that a step's bad end does not stop the others."""
    if step.phase is not StepPhase.FAILED or step.outcome is None or fold.workflow is None:
        return False
    return fold.workflow.document.by_id[step.id].on.get(step.outcome) is Reaction.CONTINUE


def _owes_a_person(fold: Fold, step: StepState) -> bool:
    """True where a bad end is not over: an effect that is missing, or an end that the document does not accept."""
    return step.phase is StepPhase.FAILED and not (continues(fold, step) and step.kind is not StepKind.COMMAND)


def _backward(fold: Fold, rows: list[JournalRow]) -> InstanceStatus:
    undos = [row for row in rows if row.compensates is not None]
    own = forward(rows)
    moving = any(on_its_way(row) for row in rows)
    stuck = [row for row in undos if row.state in PERSONS]
    stuck += [row for row in own if row.state is OperationState.NEEDS_REVIEW or (barred(row) and not on_its_way(row))]
    if stuck and not moving:
        return InstanceStatus.HUMAN_TAKEOVER
    cancelled = (fold.instance.turned or {}).get("reason") in ENDS_CANCELLED
    if moving or fold.instance.owed or any(row.compensation_state in _UNDO_OPEN for row in own):
        begun = bool(undos) or not any(on_its_way(row) for row in own)
        return InstanceStatus.COMPENSATING if begun or not cancelled else InstanceStatus.CANCEL_PENDING
    if not fold.undone:
        return InstanceStatus.COMPENSATING
    if any(alert_of(row, alone=False) is not None for row in own):
        return InstanceStatus.HUMAN_TAKEOVER
    return InstanceStatus.CANCELLED if cancelled else InstanceStatus.COMPENSATED


def _forward(fold: Fold, rows: list[JournalRow]) -> InstanceStatus:
    steps = list(fold.steps.values())
    if fold.instance.cancel is not None:
        return InstanceStatus.CANCEL_PENDING
    if fold.instance.paused is not None:
        return InstanceStatus.PAUSED
    if all(step.phase in STEP_OVER for step in steps):
        if any(_owes_a_person(fold, step) for step in steps) or any(alert_of(row, alone=False) for row in rows):
            return InstanceStatus.HUMAN_TAKEOVER
        return InstanceStatus.VERIFYING if fold.instance.owed else InstanceStatus.CLOSED
    if any(on_its_way(row) for row in rows):
        return InstanceStatus.RUNNING
    if not fold.instance.locked or any(step.phase is StepPhase.WAITING for step in steps):
        return InstanceStatus.WAITING
    if any(step.phase is StepPhase.RUNNING and step.attached for step in steps):
        return InstanceStatus.RUNNING
    return InstanceStatus.HUMAN_TAKEOVER


def status_by_now(fold: Fold) -> InstanceStatus:
    """The status by which an act is judged: as stored, unless an act before it in the same commit changed it.

    Which steps begin then is not decided yet, so a case that goes forward is on its way.
    """
    instance = fold.instance
    if not fold.acted or instance.status in INSTANCE_TERMINAL:
        return instance.status
    status = status_of_workflow(fold)
    if Direction(instance.direction) is Direction.FORWARD and instance.cancel is None and instance.paused is None:
        return InstanceStatus.RUNNING
    return status


def status_of_workflow(fold: Fold) -> InstanceStatus:
    """The status that follows from everything else."""
    instance = fold.instance
    if instance.status in INSTANCE_TERMINAL:
        return instance.status
    rows = list(fold.operations.values())
    match Direction(instance.direction):
        case Direction.BACKWARD:
            return _backward(fold, rows)
        case Direction.STOP:
            settled = not any(blocks_undoing(row) for row in rows)
            return InstanceStatus.SAFE_STOPPED if settled else InstanceStatus.HUMAN_TAKEOVER
        case Direction.PERSON:
            closed = (instance.turned or {}).get("reason") == RESOLVED and not any(map(on_its_way, rows))
            return InstanceStatus.RESOLVED if closed else InstanceStatus.HUMAN_TAKEOVER
        case _:
            return _forward(fold, rows)
