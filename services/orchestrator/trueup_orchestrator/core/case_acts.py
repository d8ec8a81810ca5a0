"""What people do with a case as a whole: pause, resume, cancel, take over, hand back, undo, close.

Automation is taken from a case at once and comes back only on purpose: with a new deadline, with the bad ends that
made it a person's left in that person's hands, and with every wait that was withdrawn asked anew.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.operators import OperatorAction
from trueup_common.contracts.resumption import Resumption, resumption
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.standing import barred
from trueup_common.contracts.states import OperationState
from trueup_common.contracts.workflow import Direction, StepPhase
from trueup_orchestrator.core.acts import done_by, in_hand, overtake, tell_end
from trueup_orchestrator.core.again import redrive, renew
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.obligations import RESOLVED
from trueup_orchestrator.core.operation import PERSONS, Trigger
from trueup_orchestrator.core.reactions import turn
from trueup_orchestrator.core.resuming import fresh, rows_of
from trueup_orchestrator.core.saga import take_cancel
from trueup_orchestrator.core.status import on_its_way

A = OperatorAction
TAKEN_OVER: Final = "taken_over"
SAFE_STOPPED: Final = "safe_stopped"
UNDONE: Final = "undone_by_person"


def _entry(asked: OperatorCommand) -> dict[str, Any]:
    return {
        "actor": asked.actor,
        "reason": asked.reason,
        "at": rfc3339(asked.at),
        "operator_command_id": asked.operator_command_id,
    }


def _note(fold: Fold, asked: OperatorCommand, type_: str, cause: str | None, **facts: Any) -> None:
    fold.case_note(
        type_,
        actor=asked.actor,
        at=asked.at,
        cause=cause,
        operator_command_id=asked.operator_command_id,
        decision_id=asked.decision_id,
        action=asked.action,
        reason=asked.reason,
        evidence=asked.evidence or None,
        **facts,
    )


def _done(fold: Fold, asked: OperatorCommand, **result: Any) -> None:
    tell_end(fold, asked.operator_command_id, result={"direction": fold.instance.direction, **result})


def _pause(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    _note(fold, asked, "CasePaused", cause)
    fold.instance = fold.instance.evolve(paused=_entry(asked))
    _done(fold, asked)


def _cancel(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    """Its end comes later: what is out settles, what was done is undone (see `acts.end_ways_back`)."""
    _note(fold, asked, "CancelRequested", cause)
    fold.instance = fold.instance.evolve(cancel=_entry(asked))
    take_cancel(fold)  # at once: by where the case goes now, what others ask for in the same commit is judged


def _take_over(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    """Nothing new is sent from here on. `params.stop` ends the case for good, once what is out is settled."""
    stop = bool(asked.params.get("stop"))
    _note(fold, asked, "CaseTakenOver", cause, stop=stop or None)
    fold.instance = fold.instance.evolve(paused=None)
    turn(fold, Direction.STOP if stop else Direction.PERSON, SAFE_STOPPED if stop else TAKEN_OVER, detail=asked.reason)
    _done(fold, asked)


def _compensate(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    """Its end comes later: when what stood is taken back, or a person has it (see `acts.end_ways_back`)."""
    _note(fold, asked, "CompensationAsked", cause)
    _undo(fold, asked, ended=False)


def _undo(fold: Fold, asked: OperatorCommand, **entry: Any) -> None:
    """Backwards on a person's decision: whatever comes of it names who decided."""
    turn(fold, Direction.BACKWARD, UNDONE, detail=asked.reason)
    turned = {**(fold.instance.turned or {}), "actor": asked.actor, "operator_command_id": asked.operator_command_id}
    fold.instance = fold.instance.evolve(turned={**turned, **entry})


def _hand_back(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    """Its end tells where the case stands then: what made it a person's may do so again at once."""
    _note(fold, asked, "CaseHandedBack", cause)
    go_forward(fold, asked)
    fold.handed_back.append(asked.operator_command_id)


def _resume(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    """The end of a pause, or on from a step: what does not stand from there on runs again."""
    if fold.instance.paused is not None:
        _note(fold, asked, "CaseResumed", cause)
        fold.instance = fold.instance.evolve(paused=None)
        _done(fold, asked)
        return
    from_step = str(asked.params.get("from_step"))
    steps = list(fold.steps.values())
    found = resumption(steps, rows_of(fold), from_step) or Resumption((), tuple(step.id for step in steps))
    again, kept = list(found.again), list(found.kept)
    _note(fold, asked, "CaseResumed", cause, from_step=from_step, again=again, kept=kept)
    for step_id in again:
        _reopen(fold, asked, step_id)
    go_forward(fold, asked)
    redriven = [row for row in fold.operations.values() if row.operator_command_id == asked.operator_command_id]
    if not any(in_hand(row) for row in redriven):
        _done(fold, asked, again=again, kept=kept, version=fold.instance.version)  # else it ends with what was redriven


def _reopen(fold: Fold, asked: OperatorCommand, step_id: str) -> None:
    """A step from its beginning; an effect that may have happened is redriven instead: looked at first."""
    state = fold.steps[step_id]
    if state.phase is StepPhase.PENDING:
        return  # it has not begun
    row = fold.operations.get(state.command_id or "")
    if row is None or row.state in (OperationState.FAILED, OperationState.CANCELLED, OperationState.CONFLICT):
        if row is not None and barred(row):
            return
        if row is not None and row.state is OperationState.CONFLICT:
            fold.at(row.command_id).fail(Trigger.SETTLE_ABSENT, row.error_class, row.error_code or "conflict")
            done_by(fold, asked)
        fold.steps[step_id] = fresh(state)
    elif row.state in PERSONS and fold.workflow is not None:
        fold.at(row.command_id)
        redrive(fold, asked, fold.workflow.declarations[row.command_type], row.identity)


def go_forward(fold: Fold, asked: OperatorCommand, *, undoing: bool = False) -> None:
    """Give the case back to automation; what undoes something goes on backwards.

    Bad ends stay in the person's hands and turn the case no more; what was withdrawn begins anew; what is still out is
    not to be cancelled any more.
    """
    if undoing:
        _undo(fold, asked)
        return
    for state in list(fold.steps.values()):
        if state.phase is StepPhase.FAILED:
            fold.step(state.id, held=True)
        elif state.phase is StepPhase.WITHDRAWN:
            fold.steps[state.id] = fresh(state)
    for row in list(fold.operations.values()):
        if row.cancel_requested and row.compensates is None and on_its_way(row):
            fold.at(row.command_id).set(cancel_requested=False)
    overtake(fold, asked)
    if fold.instance.direction != Direction.FORWARD:
        fold.case_note("CaseTurned", direction=Direction.FORWARD.value, reason=asked.action)
    fold.instance = fold.instance.evolve(direction=Direction.FORWARD.value, turned=None, cancel=None, paused=None)
    renew(fold, asked)


def _mark_resolved(fold: Fold, asked: OperatorCommand, cause: str | None) -> None:
    """A person says what became of every effect: the case is over, and nothing of it is owed any more."""
    owed = [item["element"] for item in fold.instance.owed]
    _note(fold, asked, "CaseResolved", cause, disposition=asked.params.get("disposition"), unobserved=owed or None)
    for row in list(fold.operations.values()):
        if row.state in PERSONS:
            settled = {"resolved_at": fold.moment.business, "resolution_type": "resolved"}
            fold.at(row.command_id).move(Trigger.RESOLVE, human_review_required=False, **settled)
            done_by(fold, asked)
    stopped = fold.instance.direction == Direction.STOP
    overtake(fold, asked)  # else the cancel would turn it once more, and call undone what nobody undid
    fold.instance = fold.instance.evolve(
        direction=fold.instance.direction if stopped else Direction.PERSON.value, cancel=None
    )
    end_owing(fold, asked)
    _done(fold, asked)


def end_owing(fold: Fold, asked: OperatorCommand) -> None:
    """What was owed is settled by a person's word: the case ends as resolved, and never as closed."""
    turned = {**(fold.instance.turned or {}), "reason": RESOLVED, "detail": asked.reason, "at": rfc3339(asked.at)}
    fold.instance = fold.instance.evolve(turned=turned, owed=[])


CaseAct = Callable[[Fold, OperatorCommand, str | None], None]

CASE_ACTS: Final[Mapping[OperatorAction, CaseAct]] = {
    A.PAUSE: _pause,
    A.RESUME: _resume,
    A.CANCEL: _cancel,
    A.TAKE_OVER: _take_over,
    A.HAND_BACK: _hand_back,
    A.COMPENSATE: _compensate,
    A.MARK_RESOLVED: _mark_resolved,
}
"""What an action does with a workflow."""
