"""What follows a step's bad end: the document's word, else the recovery table's. Tables, and the one way to turn."""

from typing import Final

from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import OperationState
from trueup_common.contracts.workflow import Direction, GoTo, Reaction, StepKind, StepOutcome, StepState
from trueup_orchestrator.core.attempts import barred
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.recovery import Action, Pivot, Situation, action

OUTCOME_OF_STATE: Final = {
    OperationState.FAILED: StepOutcome.FAILED,
    OperationState.CONFLICT: StepOutcome.CONFLICT,
    OperationState.DEAD_LETTERED: StepOutcome.EXHAUSTED,
}
"""How a step ended whose operation ended badly. NEEDS_REVIEW is no end: a person finds out what happened."""

SITUATION_OF_OUTCOME: Final = {
    StepOutcome.FAILED: Situation.PERMANENT,
    StepOutcome.EXHAUSTED: Situation.EXHAUSTED,
}

REACTION_OF_ACTION: Final = {
    Action.COMPENSATE: Reaction.COMPENSATE,
    Action.DEAD_LETTER_BACKWARD: Reaction.TAKEOVER,
    Action.DEAD_LETTER_FORWARD: None,
    Action.FORWARD: None,
    Action.WAIT: None,
    Action.PERSON: Reaction.TAKEOVER,
}
"""What the recovery table's actions mean for a step. None: the step stays with its exception, the others go on."""

DEFAULT_REACTION: Final = {
    StepOutcome.CONFLICT: Reaction.TAKEOVER,
    StepOutcome.REJECTED: Reaction.COMPENSATE,
    StepOutcome.TIMEOUT: Reaction.TAKEOVER,
}
"""What follows where the document says nothing and no effect is concerned."""

DIRECTION_OF_REACTION: Final = {
    Reaction.COMPENSATE: Direction.BACKWARD,
    Reaction.CANCEL: Direction.BACKWARD,
    Reaction.TAKEOVER: Direction.PERSON,
    Reaction.SAFE_STOP: Direction.STOP,
}


def reaction_of(fold: Fold, state: StepState, pivot: Pivot) -> Reaction | GoTo | None:
    """What follows a step's bad end: the document's word, else the recovery table's. None: nothing turns."""
    assert fold.workflow is not None
    row = fold.operations.get(state.command_id or "")
    if row is not None and (row.state is OperationState.NEEDS_REVIEW or barred(row)):
        return Reaction.TAKEOVER if pivot is not Pivot.PASSED else None
    if state.outcome is None:
        return None
    said = fold.workflow.document.by_id[state.id].on.get(state.outcome)
    if said is None:
        if state.kind is StepKind.CHECK:
            said = Reaction.TAKEOVER
        elif state.outcome in SITUATION_OF_OUTCOME:
            said = REACTION_OF_ACTION[action(SITUATION_OF_OUTCOME[state.outcome], pivot)]
        else:
            said = DEFAULT_REACTION[state.outcome]
    backward = said in (Reaction.COMPENSATE, Reaction.CANCEL)
    if backward and pivot is not Pivot.NO:
        return None  # never beside an unknown pivot, never after one
    if said is Reaction.TAKEOVER and pivot is Pivot.PASSED and state.kind is StepKind.COMMAND:
        return None  # forward: its exception is a person's, what does not need it goes on
    return said


def turn(
    fold: Fold, direction: Direction, reason: str, *, step_id: str | None = None, detail: str | None = None
) -> None:
    """Leave the way forward, once."""
    turned = {"reason": reason, "step_id": step_id, "detail": detail, "at": rfc3339(fold.moment.business)}
    fold.case_note("CaseTurned", direction=direction.value, reason=reason, step_id=step_id, detail=detail)
    fold.instance = fold.instance.evolve(direction=direction.value, turned=turned)
